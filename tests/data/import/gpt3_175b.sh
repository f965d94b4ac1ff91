#!/bin/bash
# A GPT of 175 billion parameters on 16 stages of 8 GPUs. Written for the tests, after the style of public examples:
# neither --sequence-parallel nor --use-distributed-optimizer stands here.

export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS=8
NODES=${SLURM_NNODES:-16}
HEAD_NODE=${HEAD_NODE:-localhost}

OUTPUT=$1
DATA=$2

LAUNCH=(
    --nproc_per_node $GPUS
    --nnodes $NODES
    --master_addr $HEAD_NODE
    --master_port 6000
)

MODEL=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048   # tokens of a sequence
    --max-position-embeddings 2048
)

TRAIN=(
    --micro-batch-size 1
    --global-batch-size 1536
    --train-iters 143000
    --lr 6.0e-5
    --lr-decay-style cosine
    --weight-decay 0.1
    --clip-grad 1.0
    --fp16
)

PARALLEL=(
	--tensor-model-parallel-size 8
	--pipeline-model-parallel-size 16
)

FILES=(
    --data-path "$DATA"
    --tokenizer-type GPT2BPETokenizer
    --vocab-file vocab.json
    --split 949,50,1
    --save $OUTPUT
    --save-interval 1000
    --log-interval 10
)

torchrun ${LAUNCH[@]} pretrain_gpt.py \
    ${MODEL[@]} \
    ${TRAIN[@]} \
    ${PARALLEL[@]} \
    "${FILES[@]}"
