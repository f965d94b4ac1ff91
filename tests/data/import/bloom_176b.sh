#!/bin/bash
# Written anew after the launch of BigScience's 176B model: Megatron-DeepSpeed, whose engine reads a file that the
# script itself writes.
#SBATCH --nodes=48
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8

GPUS_PER_NODE=8
NNODES=$SLURM_NNODES
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)

PP_SIZE=12
TP_SIZE=4
MICRO_BATCH_SIZE=2
GLOBAL_BATCH_SIZE=2048
NLAYERS=70
NHIDDEN=14336
NHEADS=112
SEQ_LEN=2048
ZERO_STAGE=0

config_json="./ds_config.$SLURM_JOBID.json"

# DeepSpeed's configuration: bf16 shards by itself, so its stage is 0
cat <<EOT > $config_json
{
  "train_micro_batch_size_per_gpu": $MICRO_BATCH_SIZE,
  "train_batch_size": $GLOBAL_BATCH_SIZE,
  "gradient_clipping": 1.0,
  "zero_optimization": {
    "stage": $ZERO_STAGE
  },
  "bf16": {
    "enabled": true
  },
  "steps_per_print": 2000,
  "wall_clock_breakdown": false
}
EOT

OPTIMIZER_ARGS=" \
    --optimizer adam --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 \
    --lr 6e-5 --min-lr 6e-6 --lr-decay-style cosine --clip-grad 1.0 --weight-decay 1e-1 \
    "
GPT_ARGS=" \
    --pp-partition-method 'type:transformer|embedding' \
    --num-layers $NLAYERS --hidden-size $NHIDDEN --num-attention-heads $NHEADS \
    --seq-length $SEQ_LEN --max-position-embeddings $SEQ_LEN \
    --micro-batch-size $MICRO_BATCH_SIZE --rampup-batch-size 192 16 9_765_625 \
    --global-batch-size $GLOBAL_BATCH_SIZE \
    --tokenizer-type PretrainedFromHF --tokenizer-name-or-path bigscience/tokenizer \
    --pad-vocab-size-to 250880 --embed-layernorm --position-embedding-type alibi \
    --bf16 --seed 42 --checkpoint-activations --train-samples 220_000_000 \
    $OPTIMIZER_ARGS \
    "
DEEPSPEED_ARGS=" \
    --deepspeed \
    --deepspeed_config ${config_json} \
    --zero-stage ${ZERO_STAGE} \
    --deepspeed-activation-checkpointing \
    "
export LAUNCHER="python -u -m torch.distributed.run \
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes $NNODES \
    --rdzv_endpoint $MASTER_ADDR:6000 --rdzv_backend c10d --max_restarts 0 --tee 3 \
    "
export CMD=" \
    `pwd`/pretrain_gpt.py \
    --tensor-model-parallel-size $TP_SIZE \
    --pipeline-model-parallel-size $PP_SIZE \
    $GPT_ARGS \
    --data-impl mmap --distributed-backend nccl \
    $DEEPSPEED_ARGS \
    "
srun bash -c "$LAUNCHER --node_rank \$SLURM_PROCID $CMD" 2>&1 | tee -a main_log.txt
