# Llama 2 70B on 64 GPUs, by flags. Written for the tests.
export XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_graph_level=0"
python3 -m MaxText.train MaxText/configs/base.yml run_name=tests model_name=llama2-70b hardware=gpu \
  per_device_batch_size=2 max_target_length=4096 attention=cudnn_flash_te remat_policy=save_qkv_proj \
  dcn_data_parallelism=1 dcn_fsdp_parallelism=8 ici_fsdp_parallelism=8 steps=20 dataset_type=synthetic
