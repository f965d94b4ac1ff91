#!/usr/bin/env python3
"""Training steps of Hugging Face models in PyTorch on one GPU, each with the RUN that predicts it, as a table.

    tools/torch_steps.py --out steps.json [--seconds 200] [--only NAME...]

Each row has the median step of --steps, the kernels of one more step by name (PyTorch's profiler), the peaks of the
caching allocator, and `run`: what foretrain is asked for the same step. Models are slices of published ones, with
random weights: no file is read. A row that fails is named in `skipped`, with its reason.

Left out: several ranks, data loading. A step is device-bound unless `busy_share` says otherwise.
"""
import argparse
import contextlib
import gc
import json
import os
import statistics
import sys
import time
import traceback

import torch

DEVICE = "cuda"

LLAMA_8B = dict(model_type="llama", hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
                num_key_value_heads=8, num_hidden_layers=4, vocab_size=128256, max_position_embeddings=8192,
                rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=False)
LLAMA_1B = dict(model_type="llama", hidden_size=2048, intermediate_size=8192, num_attention_heads=32,
                num_key_value_heads=8, head_dim=64, num_hidden_layers=16, vocab_size=128256,
                max_position_embeddings=8192, rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=True)
GPT2 = dict(model_type="gpt2", n_embd=1024, n_head=16, n_layer=24, n_positions=1024, vocab_size=50257,
            activation_function="gelu_new")
BERT = dict(model_type="bert", hidden_size=1024, num_attention_heads=16, num_hidden_layers=24, intermediate_size=4096,
            max_position_embeddings=512, vocab_size=30522)
QWEN3 = dict(model_type="qwen3", hidden_size=2560, intermediate_size=9728, num_attention_heads=32,
             num_key_value_heads=8, head_dim=128, num_hidden_layers=8, vocab_size=151936,
             max_position_embeddings=8192, tie_word_embeddings=True)
GEMMA3 = dict(model_type="gemma3_text", hidden_size=2560, intermediate_size=10240, num_attention_heads=8,
              num_key_value_heads=4, head_dim=256, num_hidden_layers=6, vocab_size=262208, sliding_window=1024,
              max_position_embeddings=8192, tie_word_embeddings=True)
QWEN3_MOE = dict(model_type="qwen3_moe", hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768,
                 num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_hidden_layers=4, num_experts=128,
                 num_experts_per_tok=8, decoder_sparse_step=1, norm_topk_prob=True, vocab_size=151936,
                 max_position_embeddings=8192, tie_word_embeddings=False)
MIXTRAL = dict(model_type="mixtral", hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
               num_key_value_heads=8, num_hidden_layers=2, num_local_experts=8, num_experts_per_tok=2,
               vocab_size=32000, max_position_embeddings=8192, tie_word_embeddings=False)
GPT_OSS = dict(model_type="gpt_oss", hidden_size=2880, intermediate_size=2880, num_attention_heads=64,
               num_key_value_heads=8, head_dim=64, num_hidden_layers=4, num_local_experts=32, num_experts_per_tok=4,
               vocab_size=201088, max_position_embeddings=8192, sliding_window=128, tie_word_embeddings=False)


def case(name, model, micro, sequence, weights="bf16", autocast=None, attention="sdpa", recompute=False, clip=False,
         optimizer="fused", compile_layers=False, micros=1):
    return dict(name=name, model=model, micro=micro, sequence=sequence, weights=weights, autocast=autocast,
                attention=attention, recompute=recompute, clip=clip, optimizer=optimizer,
                compile_layers=compile_layers, micros=micros)


CASES = [
    case("llama-8b-bf16", LLAMA_8B, 2, 4096),
    case("llama-8b-autocast", LLAMA_8B, 2, 4096, weights="fp32", autocast="bf16", clip=True, optimizer="foreach"),
    case("qwen3-30b-a3b-bf16", QWEN3_MOE, 2, 4096),
    case("gpt2-medium-fp32", GPT2, 8, 1024, weights="fp32", attention="eager", clip=True, optimizer="foreach"),
    case("gpt2-medium-autocast", GPT2, 16, 1024, weights="fp32", autocast="bf16", clip=True, optimizer="foreach"),
    case("llama-8b-recomputed", LLAMA_8B, 4, 4096, recompute=True),
    case("llama-1b-autocast", LLAMA_1B, 4, 2048, weights="fp32", autocast="bf16", clip=True, optimizer="foreach"),
    case("bert-large-autocast", BERT, 16, 512, weights="fp32", autocast="fp16", attention="eager", clip=True,
         optimizer="foreach"),
    case("mixtral-bf16", MIXTRAL, 2, 4096),
    case("gpt-oss-20b-bf16", GPT_OSS, 1, 4096, attention="eager"),
    case("qwen3-4b-bf16", QWEN3, 2, 4096),
    case("gemma3-4b-bf16", GEMMA3, 1, 4096),
    case("llama-8b-fp32", LLAMA_8B, 1, 2048, weights="fp32", attention="eager"),
    case("llama-8b-accumulated", LLAMA_8B, 1, 4096, micros=4),
    case("llama-8b-compiled", LLAMA_8B, 2, 4096, compile_layers=True),
]

TYPES = dict(fp32=torch.float32, bf16=torch.bfloat16, fp16=torch.float16)


def run_of(one):
    """What foretrain is asked: the system of Hugging Face's Trainer on one GPU, with what the case says otherwise."""
    clusters = {"H200": "dgx-h200", "B200": "dgx-b200", "A100": "dgx-a100-80gb"}
    name = torch.cuda.get_device_name(0)
    preset = next((clusters[part] for part in clusters if part in name), "dgx-h100")
    run = {"model": one["model"], "system": "transformers", "cluster": {"preset": preset, "accelerators": 1},
           "batch": {"global": one["micro"] * one["micros"], "micro": one["micro"], "sequence": one["sequence"]},
           "host": {"data_us": 0, "step_us": 0}}
    kernels = {"attention": "unfused" if one["attention"] == "eager" else "flash", "flash": "flash2",
               "optimizer": "fused_adam" if one["optimizer"] == "fused" else "adam"}
    run["gradients"] = {"clip_norm": 1.0 if one["clip"] else 0}
    if one["autocast"] is None and one["weights"] != "fp32":  # PyTorch keeps Adam's moments in 16 bits too
        run["precision"] = {"compute": one["weights"], "master_weights": False}
        run["gradients"]["dtype"] = "compute"
        kernels["autocast"] = False
    else:
        run["precision"] = one["autocast"] or one["weights"]
    if one["compile_layers"]:
        kernels["compile"] = True
    run["kernels"] = kernels
    if one["recompute"]:
        run["recompute"] = "full"
    return run


def build(one):
    import transformers
    sizes = {k: v for k, v in one["model"].items() if k != "model_type"}
    config = transformers.AutoConfig.for_model(one["model"]["model_type"], **sizes)
    config._attn_implementation = one["attention"]
    config.use_cache = False
    kind = transformers.AutoModelForMaskedLM if one["model"]["model_type"] == "bert" else \
        transformers.AutoModelForCausalLM
    with torch.device(DEVICE):
        model = kind.from_config(config, dtype=TYPES[one["weights"]], attn_implementation=one["attention"])
    model = model.to(device=DEVICE, dtype=TYPES[one["weights"]])
    model.train()
    if one["recompute"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if one["compile_layers"]:
        for layer in model.model.layers:
            layer.compile()
    return model, config


def step_of(one, model):
    params = [p for p in model.parameters() if p.requires_grad]
    adam = torch.optim.AdamW(params, lr=1e-5, fused=one["optimizer"] == "fused", foreach=one["optimizer"] == "foreach")
    tokens = torch.randint(0, one["model"]["vocab_size"], (one["micro"], one["sequence"]), device=DEVICE)
    cast = (lambda: torch.autocast("cuda", TYPES[one["autocast"]])) if one["autocast"] else contextlib.nullcontext

    def step():
        for _ in range(one["micros"]):
            with cast():
                loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
        if one["clip"]:
            torch.nn.utils.clip_grad_norm_(params, 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
    return step, sum(p.numel() for p in params)


def kernels_of(step):
    """Kernels and copies of one step: by name how many, and their microseconds; the span from the first to the last."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        step()
        torch.cuda.synchronize()
    found, first, last = {}, float("inf"), 0.0
    for event in p.events():
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        of = found.setdefault(event.name[:160], [0, 0.0])
        of[0] += 1
        of[1] += event.time_range.elapsed_us()
        first, last = min(first, event.time_range.start), max(last, event.time_range.end)
    rows = sorted(([name, n, round(us, 2)] for name, (n, us) in found.items()), key=lambda r: -r[2])
    return rows, last - first


def measure(one, steps):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model, config = build(one)
    step, parameters = step_of(one, model)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    memory = dict(allocated_gib=torch.cuda.max_memory_allocated() / 2**30,
                  reserved_gib=torch.cuda.max_memory_reserved() / 2**30)
    kernels, span = kernels_of(step)
    busy = sum(r[2] for r in kernels)
    facts = {k: v for k, v in one.items() if k not in ("name", "model")}
    facts["experts"] = getattr(config, "_experts_implementation", None)
    return dict(name=one["name"], facts=facts, parameters=parameters, run=run_of(one),
                measured=dict(step_s=statistics.median(times), least_s=min(times), most_s=max(times), steps=steps,
                              kernels_s=busy / 1e6, busy_share=busy / span if span > 0 else 0, **memory),
                kernels=kernels[:60], more_kernels=[len(kernels[60:]), sum(r[1] for r in kernels[60:]),
                                                    round(sum(r[2] for r in kernels[60:]), 2)])


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return "unknown"


def main():
    parser = argparse.ArgumentParser(description="Measures training steps of Hugging Face models on one GPU.")
    parser.add_argument("--out", required=True, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=200, help="no row begins later (default: 200)")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of a row (default: 8)")
    parser.add_argument("--only", nargs="*", choices=[c["name"] for c in CASES], help="these rows alone")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch_steps: PyTorch finds no GPU")
    import transformers
    machine = dict(gpu=torch.cuda.get_device_name(0), processor=processor(), cores=os.cpu_count(),
                   date=time.strftime("%Y-%m-%d"), torch=torch.__version__, cuda=torch.version.cuda,
                   transformers=transformers.__version__)
    rows, skipped, start = [], [], time.monotonic()

    def save():
        with open(options.out + ".new", "w", encoding="utf-8") as file:
            json.dump(dict(machine=machine, rows=rows, skipped=skipped), file, indent=1)
            file.write("\n")
        os.replace(options.out + ".new", options.out)
    for one in CASES:
        if options.only and one["name"] not in options.only:
            continue
        if time.monotonic() - start > options.seconds:
            skipped.append(one["name"] + ": no time left")
            continue
        begin = time.monotonic()
        try:
            rows.append(measure(one, options.steps))
            got = rows[-1]["measured"]
            print("%-24s %8.4f s, kernels %8.4f s, %5.1f GiB (%.0f s)" % (
                one["name"], got["step_s"], got["kernels_s"], got["allocated_gib"], time.monotonic() - begin),
                flush=True)
        except Exception as problem:  # whatever is missing here
            skipped.append("%s: %s" % (one["name"], str(problem).strip().split("\n")[0][:300]))
            traceback.print_exc()
        gc.collect()
        save()
    save()
    for line in skipped:
        print("left out: " + line)


if __name__ == "__main__":
    main()
