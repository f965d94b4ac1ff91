#!/bin/bash
#SBATCH --nodes=4
A=${B:-8}; N=$((A * 2)); L=(--x "$A" --y)
f() { if [ "$1" = a ]; then echo; elif [[ $N -gt 3 ]]; then torchrun train.py "${L[@]}" --n $N; fi; }
case $A in 8) f b ;; *) f a ;; esac
cat > c.yaml <<EOF
model: $A
EOF
for i in 1 2; do x; done
