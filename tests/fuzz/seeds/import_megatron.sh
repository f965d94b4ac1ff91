#!/bin/bash
# Llama 3 8B in fp8 on one node. Written for the tests.

TOKENIZER=${1:-"MOCK"}
TP_SIZE=2
DTYPE="fp8"
WORLD=$(nvidia-smi -L | wc -l)

run_training() {
  torchrun --nproc-per-node=8 --nnodes=1 "pretrain_gpt.py" ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${DTYPE_ARGS[@]} "$@"
}

MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --kv-channels 128
    --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope
    --attention-dropout 0.0 --hidden-dropout 0.0 --swiglu --normalization RMSNorm
    --attention-backend fused --untie-embeddings-and-output-weights --disable-bias-linear
)
TRAINING_ARGS=(
    --micro-batch-size 1 --global-batch-size 128 --lr 0.00015 --bf16 --grad-reduce-in-bf16
    --cross-entropy-loss-fusion --empty-unused-memory-level 1
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=("--fp8-format hybrid" "--fp8-amax-history-len 1024" "--fp8-param-gather")
fi
if [[ "$TOKENIZER" == "MOCK" ]] || [[ -z "$TOKENIZER" ]]; then
    DTYPE_ARGS+=("--mock-data" "--tokenizer-type NullTokenizer" "--vocab-size 128256" "--split '99,1,0'")
fi
if [ ! -f pretrain_gpt.py ]; then
    echo "pretrain_gpt.py is not here" >&2
    exit 1
fi

cat <<END
--num-layers 1
END
run_training --tensor-model-parallel-size $TP_SIZE --sequence-parallel \
    --context-parallel-size ${CONTEXT_RANKS} --exit-duration-in-mins 235
