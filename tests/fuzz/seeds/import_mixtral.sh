#!/usr/bin/env bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
# Mixtral 8x7B with four stages and experts over eight ranks. Written for the tests.
set -euo pipefail

TP=1; PP=4; EP=8
MICRO=1
GLOBAL=$((MICRO * 8 * 32))

COMMON="--use-mcore-models --disable-bias-linear --normalization RMSNorm --swiglu \
  --position-embedding-type rope --rotary-base 1000000 --no-position-embedding \
  --untie-embeddings-and-output-weights"

MOE_ARGS=(
  --num-experts 8
  --moe-router-topk 2
  --moe-router-load-balancing-type aux_loss
  --moe-aux-loss-coeff 1e-2
  --moe-grouped-gemm
  --moe-token-dispatcher-type alltoall
)

EXTRA=()
if [ -n "${WANDB_API_KEY}" ]; then
  EXTRA+=(--wandb-project mixtral)
fi
case $PP in
  1) SCHEDULE="" ;;
  *) SCHEDULE="--num-layers-per-virtual-pipeline-stage 4" ;;
esac

srun python -u pretrain_gpt.py $COMMON $SCHEDULE "${MOE_ARGS[@]}" ${EXTRA[@]} \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 32768 \
  --attention-dropout 0.0 --hidden-dropout 0.0 \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --expert-model-parallel-size $EP \
  --use-distributed-optimizer --sequence-parallel --overlap-grad-reduce --overlap-param-gather \
  --micro-batch-size $MICRO --global-batch-size $GLOBAL --bf16 \
  --tokenizer-type Llama2Tokenizer --tokenizer-model /data/tokenizer.model --lr 1e-4 --train-iters 500000
