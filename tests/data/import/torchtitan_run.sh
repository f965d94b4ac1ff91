#!/usr/bin/bash
# Starts the file beside it, with one value changed. Written for the tests.
NGPU=${NGPU:-"8"}
NNODE=4
CONFIG=./torchtitan_llama3_8b.toml
torchrun --nproc_per_node=${NGPU} --nnodes ${NNODE} --rdzv_backend c10d --local-ranks-filter 0 --role rank --tee 3 \
  -m torchtitan.train --job.config_file ${CONFIG} --training.local_batch_size=2 "$@"
