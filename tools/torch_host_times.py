#!/usr/bin/env python3
"""What the host takes for PyTorch on this machine, and what the device takes for the pieces of experts, as a table.

    tools/torch_host_times.py --out host.json [--seconds 60] [--only NAME...]

Host times are of small tensors, so that the device always waits for the host: wall time of a call from an idle device,
without waiting for what it launched. Launches are counted by PyTorch's profiler in a run of their own. Device times are
of CUDA events around many repetitions. Layers are Hugging Face's where `transformers` is installed.

Each block of rows is measured on its own: one that fails is named in `skipped`, with its reason.

Left out: several ranks (one rank's collectives cost the host what they cost, the device nothing), data loading.
"""
import argparse
import json
import os
import statistics
import sys
import time
import traceback

import torch
import torch.nn.functional as F

ROWS, SKIPPED = [], []
DEVICE = "cuda"


def row(name, unit, times, **facts):
    times = sorted(times)
    at = lambda share: times[min(len(times) - 1, int(share * len(times)))]
    ROWS.append(dict(name=name, unit=unit, median=at(0.5), p10=at(0.1), p90=at(0.9), count=len(times), **facts))
    print("%-58s %10.3f %s  %s" % (name, at(0.5), unit, facts or ""), flush=True)


def host(call, repeat=30, warm=5):
    """Microseconds from an idle device until `call` returns."""
    for _ in range(warm):
        call()
    out = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        out.append(1e6 * (time.perf_counter() - start))
    torch.cuda.synchronize()
    return out


def parts(forward, backward, repeat=30, warm=5):
    """Microseconds of `forward()` and of `backward(its result)`, each from an idle device."""
    first, second = [], []
    for i in range(repeat + warm):
        torch.cuda.synchronize()
        start = time.perf_counter()
        y = forward()
        middle = time.perf_counter()
        torch.cuda.synchronize()
        again = time.perf_counter()
        backward(y)
        end = time.perf_counter()
        if i >= warm:
            first.append(1e6 * (middle - start))
            second.append(1e6 * (end - again))
    torch.cuda.synchronize()
    return first, second


def device(call, repeat=20, inner=5, warm=3):
    """Microseconds of the device for one `call`, from events around `inner` of them."""
    for _ in range(warm):
        call()
    out = []
    for _ in range(repeat):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(inner):
            call()
        end.record()
        end.synchronize()
        out.append(1e3 * begin.elapsed_time(end) / inner)
    return out


def launches(call):
    """(kernels and copies, runtime launch calls) of one call, by the profiler."""
    from torch.profiler import ProfilerActivity, profile
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
        call()
        torch.cuda.synchronize()
    kernels = sum(1 for e in p.events() if e.device_type == torch.autograd.DeviceType.CUDA)
    calls = sum(1 for e in p.events() if "LaunchKernel" in e.name or "cudaMemcpyAsync" in e.name
                or "cudaMemsetAsync" in e.name)
    return kernels, calls


def kernels_of(call):
    """Device microseconds of one call, summed over its kernels, and their number."""
    from torch.profiler import ProfilerActivity, profile
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        call()
        torch.cuda.synchronize()
    events = [e for e in p.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(e.device_time for e in events), len(events)


# --- host ------------------------------------------------------------------------------------------------------------


def single_operations():
    x = torch.randn(64, 64, device=DEVICE, dtype=torch.bfloat16)
    w = torch.randn(64, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    norm = torch.randn(64, device=DEVICE, dtype=torch.bfloat16)
    linear = torch.nn.Linear(64, 64, bias=False, device=DEVICE, dtype=torch.bfloat16)

    def many(call, n=200):
        def once():
            for _ in range(n):
                call()
        return [t / n for t in host(once)]
    with torch.no_grad():
        row("in-place add, no gradient", "us", many(lambda: x.add_(1)))
        row("add, no gradient", "us", many(lambda: x + x))
        row("matmul, no gradient", "us", many(lambda: x @ w))
        row("nn.Linear, no gradient", "us", many(lambda: linear(x)))
        row("rms_norm, no gradient", "us", many(lambda: F.rms_norm(x, (64,), norm)))
    row("nn.Linear, with gradient", "us", many(lambda: linear(x)))
    row("add, with gradient", "us", many(lambda: w + x))
    empty = torch.empty(0, device=DEVICE)
    row("empty allocation", "us", many(lambda: torch.empty(64, 64, device=DEVICE)))
    row("stream wait of an event", "us", many(lambda: torch.cuda.current_stream().wait_event(
        torch.cuda.current_stream().record_event())))
    row("item(): a number to the host, device idle", "us", host(lambda: x.view(-1)[0].item(), 200))
    del empty

    depth = 64
    chain = torch.nn.Sequential(*[torch.nn.Linear(64, 64, bias=False, device=DEVICE, dtype=torch.bfloat16)
                                  for _ in range(depth)])
    y = torch.randn(64, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)

    def backward(out):
        out.backward(torch.ones_like(out))
    f, b = parts(lambda: chain(y), backward)
    row("64 linears: forward, a linear", "us", [t / depth for t in f])
    row("64 linears: backward, a linear", "us", [t / depth for t in b])


def layer_of(kind, hidden=256, heads=4, keys=2, ffn=512, layers=8, **more):
    import transformers
    config = getattr(transformers, kind + "Config")(
        hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=keys, intermediate_size=ffn,
        num_hidden_layers=layers, vocab_size=1024, max_position_embeddings=512, use_cache=False, **more)
    config._attn_implementation = "sdpa"
    with torch.device(DEVICE):
        model = getattr(transformers, kind + "ForCausalLM")(config).to(torch.bfloat16)
    model.train()
    return model


def steps_of(name, model, layers, prepare=None, **facts):
    """Host microseconds of a layer forward and backward, of what stands around layers, and launches."""
    tokens = torch.randint(0, 1024, (1, 64), device=DEVICE)
    forward = lambda: model(input_ids=tokens, labels=tokens, use_cache=False).loss
    backward = lambda loss: loss.backward()
    f, b = parts(forward, backward, 20, 5)
    both = lambda: forward().backward()
    kernels, calls = launches(both)
    row(name + ": forward of %d layers" % layers, "us", f, kernels=kernels, launches=calls, **facts)
    row(name + ": backward of %d layers" % layers, "us", b, **facts)
    return f, b


def pairs(name, kind, wrap=lambda m: m, counts=(4, 12), **more):
    """Two depths, whose difference is the layers'."""
    got = {}
    for n in counts:
        model = wrap(layer_of(kind, layers=n, **more))
        f, b = steps_of(name, model, n)
        forward = lambda: model(input_ids=torch.zeros(1, 64, dtype=torch.long, device=DEVICE),
                                labels=torch.zeros(1, 64, dtype=torch.long, device=DEVICE), use_cache=False).loss
        got[n] = (statistics.median(f), statistics.median(b), launches(lambda: forward().backward())[1])
        del model
    low, high = counts
    step = high - low
    for i, what in enumerate(("forward", "backward")):
        row(name + ": a layer " + what, "us", [(got[high][i] - got[low][i]) / step])
    row(name + ": launches of a layer, both ways", "launches", [(got[high][2] - got[low][2]) / step])


def eager_layers():
    pairs("Llama eager", "Llama")


def compiled_layers():
    def wrap(model):
        for layer in model.model.layers:
            layer.compile()
        return model
    pairs("Llama, layers compiled", "Llama", wrap, counts=(2, 6))


def recomputed_layers():
    def wrap(model):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model
    pairs("Llama eager, recomputed", "Llama", wrap)

    def wrap_reentrant(model):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
        return model
    pairs("Llama eager, recomputed, reentrant", "Llama", wrap_reentrant)


def expert_layers():
    pairs("Qwen3-MoE eager, 16 experts", "Qwen3Moe", num_experts=16, num_experts_per_tok=2, moe_intermediate_size=128,
          decoder_sparse_step=1, head_dim=64)
    pairs("Qwen3-MoE eager, 64 experts", "Qwen3Moe", num_experts=64, num_experts_per_tok=4, moe_intermediate_size=128,
          decoder_sparse_step=1, head_dim=64)


def graphs():
    x = torch.randn(64, 64, device=DEVICE)
    stream = torch.cuda.Stream()
    for nodes in (1, 10, 100, 1000):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for _ in range(3):
                x.add_(1)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(nodes):
                x.add_(1)
        row("launch of a graph of %d kernels, host" % nodes, "us", host(graph.replay, 100))
        if nodes == 1000:
            row("kernel of a chain in a graph, device", "us", [t / nodes for t in device(graph.replay)])
    layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)).to(DEVICE)
    sample = torch.randn(64, 64, device=DEVICE, requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(layer, (sample,))
    y = torch.randn(64, 64, device=DEVICE, requires_grad=True)
    d_y = torch.randn(64, 64, device=DEVICE)
    f, b = parts(lambda: graphed(y), lambda out: out.backward(d_y))
    row("make_graphed_callables: forward", "us", f)
    row("make_graphed_callables: backward", "us", b)


def optimizers():
    for n in (50, 200):
        params = [torch.nn.Parameter(torch.randn(64, 64, device=DEVICE)) for _ in range(n)]
        for p in params:
            p.grad = torch.randn_like(p)
        for how in ("for-loop", "foreach", "fused"):
            options = {"foreach": how == "foreach", "fused": how == "fused"}
            adam = torch.optim.AdamW(params, **options)
            row("AdamW %s, %d tensors" % (how, n), "us", host(adam.step, 10, 3))
        sgd = torch.optim.SGD(params, momentum=0.9, lr=0.1, foreach=False)
        row("SGD with momentum for-loop, %d tensors" % n, "us", host(sgd.step, 10, 3))
        for foreach in (False, True):
            row("clip_grad_norm_ %s, %d tensors" % ("foreach" if foreach else "for-loop", n), "us",
                host(lambda: torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=foreach), 10, 3))
        row("zero_grad to none, %d tensors" % n, "us", host(lambda: adam.zero_grad(set_to_none=False), 10, 3))


def start_group():
    import torch.distributed as dist
    if not dist.is_initialized():
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29517")
        dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
    return dist


def collectives():
    dist = start_group()
    x = torch.randn(1 << 16, device=DEVICE)
    y = torch.randn(1 << 16, device=DEVICE)

    def many(call, n=100):
        def once():
            for _ in range(n):
                call()
        return [t / n for t in host(once)]
    row("c10d all_reduce, one rank", "us", many(lambda: dist.all_reduce(x)))
    row("c10d all_reduce async and wait, one rank", "us", many(lambda: dist.all_reduce(x, async_op=True).wait()))
    row("c10d all_gather_into_tensor, one rank", "us", many(lambda: dist.all_gather_into_tensor(y, x)))
    row("c10d reduce_scatter_tensor, one rank", "us", many(lambda: dist.reduce_scatter_tensor(y, x)))
    row("c10d all_to_all_single, one rank", "us", many(lambda: dist.all_to_all_single(y, x)))


def data_parallel():
    start_group()
    from torch.nn.parallel import DistributedDataParallel
    pairs("Llama eager, DDP", "Llama", lambda m: DistributedDataParallel(m))


def fully_sharded():
    start_group()
    from torch.distributed.fsdp import fully_shard

    def wrap(model):
        for layer in model.model.layers:
            fully_shard(layer)
        return fully_shard(model)
    pairs("Llama eager, FSDP2", "Llama", wrap)


def fully_sharded_once():
    start_group()
    import functools
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    def wrap(model):
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=True,
                                        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
    pairs("Llama eager, FSDP1", "Llama", wrap)


# --- the device: pieces of experts -----------------------------------------------------------------------------------


def grouped_products():
    shapes = [("Mixtral", 1, 8192, 14336, 4096), ("DeepSeek-V3", 32, 1024, 4096, 7168), ("DeepSeek-V3 down", 32, 1024, 7168, 2048),
              ("8 experts", 8, 4096, 768, 2048), ("16 experts", 16, 2048, 768, 2048), ("Qwen3-30B", 16, 4096, 1536, 2048),
              ("128 experts", 128, 512, 1536, 2048), ("GPT-OSS", 16, 1024, 5760, 2880), ("Qwen3-235B", 16, 2048, 3072, 4096)]
    for name, groups, m, n, k in shapes:
        x = torch.randn(groups * m, k, device=DEVICE, dtype=torch.bfloat16)
        w = torch.randn(groups, n, k, device=DEVICE, dtype=torch.bfloat16)
        d_y = torch.randn(groups * m, n, device=DEVICE, dtype=torch.bfloat16)
        ends = torch.arange(m, groups * m + 1, m, device=DEVICE, dtype=torch.int32)
        flops = 2.0 * groups * m * n * k
        xs, ys = x.chunk(groups), d_y.chunk(groups)
        outs = torch.empty(groups * m, n, device=DEVICE, dtype=torch.bfloat16)
        outs_of = outs.chunk(groups)
        facts = dict(groups=groups, m=m, n=n, k=k)

        def timed(what, call):
            times = device(call, 12, 4)
            row("%s %s" % (name, what), "TFLOP/s", [flops / t / 1e6 for t in times], **facts)
        streams = [torch.cuda.Stream() for _ in range(4)]

        def over(streams_used):
            current = torch.cuda.current_stream()
            event = current.record_event()
            for s in streams_used:
                s.wait_event(event)
            for i in range(groups):
                with torch.cuda.stream(streams_used[i % len(streams_used)]):
                    torch.mm(xs[i], w[i].t(), out=outs_of[i])
            for s in streams_used:
                current.wait_event(s.record_event())
        graph_of = {}

        def graphed(key, call):
            call()
            torch.cuda.synchronize()
            graph_of[key] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph_of[key]):
                call()
            return graph_of[key].replay
        timed("loop", graphed("loop", lambda: [torch.mm(xs[i], w[i].t(), out=outs_of[i]) for i in range(groups)]))
        timed("loop over 4 streams", graphed("streams", lambda: over(streams)))
        if hasattr(torch, "_grouped_mm"):
            timed("grouped", lambda: torch._grouped_mm(x, w.transpose(-2, -1), offs=ends))
            timed("grouped, input gradient", lambda: torch._grouped_mm(d_y, w, offs=ends))
            timed("grouped, weight gradient", lambda: torch._grouped_mm(d_y.t(), x, offs=ends))
        del x, w, d_y, outs, xs, ys, outs_of
        torch.cuda.empty_cache()


def routers():
    for tokens, experts, top in ((16384, 128, 8), (16384, 256, 8), (8192, 8, 2), (8192, 64, 6)):
        logits = torch.randn(tokens, experts, device=DEVICE)
        facts = dict(tokens=tokens, experts=experts, top=top)

        def route():
            p = torch.softmax(logits, -1)
            values, index = torch.topk(p, top)
            values = values / values.sum(-1, keepdim=True)
            dense = torch.zeros_like(logits).scatter(1, index, values)
            chosen = torch.zeros_like(logits, dtype=torch.int32).scatter(1, index, 1).bool()
            return dense, chosen, chosen.sum(0)
        us, n = kernels_of(route)
        row("router of %d experts, top %d, unfused" % (experts, top), "us", [us], kernels=n, **facts)
        us, n = kernels_of(lambda: torch.topk(logits, top))
        row("top %d of %d" % (top, experts), "us", [us], kernels=n, **facts)
        row("softmax over %d" % experts, "us", device(lambda: torch.softmax(logits, -1)), **facts)
    for tokens, top, hidden in ((8192, 2, 4096), (4096, 8, 7168), (16384, 8, 2048)):
        x = torch.randn(tokens, hidden, device=DEVICE, dtype=torch.bfloat16)
        order = torch.randperm(tokens * top, device=DEVICE)
        rows_of = order // top
        moved = 2.0 * 2 * tokens * top * hidden
        facts = dict(tokens=tokens, top=top, hidden=hidden)
        row("permute by index_select", "TB/s", [moved / t / 1e6 for t in device(lambda: x.index_select(0, rows_of))], **facts)
        y = x.index_select(0, rows_of)
        out = torch.zeros_like(x)
        row("unpermute by index_add_", "us", device(lambda: out.index_add_(0, rows_of, y)), **facts)
        wide = torch.zeros(tokens, hidden, device=DEVICE)
        index = rows_of.unsqueeze(1).expand(-1, hidden)
        row("unpermute by scatter_add_, fp32", "us", device(lambda: wide.scatter_add_(0, index, y.float())), **facts)


def losses():
    for tokens, vocabulary in ((8192, 128256), (8192, 32000)):
        logits = torch.randn(tokens, vocabulary, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        labels = torch.randint(0, vocabulary, (tokens,), device=DEVICE)
        facts = dict(tokens=tokens, vocabulary=vocabulary)
        row("cross entropy over fp32 logits, forward", "us",
            device(lambda: F.cross_entropy(logits.float(), labels), 8, 2), **facts)
        loss = F.cross_entropy(logits.float(), labels)
        row("cross entropy over fp32 logits, backward", "us",
            device(lambda: torch.autograd.grad(loss, logits, retain_graph=True), 8, 2), **facts)
        del logits, loss
        torch.cuda.empty_cache()


def scans():
    """Parts that a selective scan in PyTorch has: the state-space model of Mamba-2 in chunks, by its products."""
    for tokens, heads, head, state, chunk in ((4096, 80, 64, 128, 256), (8192, 64, 64, 128, 256)):
        n = tokens // chunk
        c = torch.randn(n, chunk, state, device=DEVICE, dtype=torch.bfloat16)
        b = torch.randn(n, chunk, state, device=DEVICE, dtype=torch.bfloat16)
        x = torch.randn(n * heads, chunk, head, device=DEVICE, dtype=torch.bfloat16)
        g = torch.randn(n * heads, chunk, chunk, device=DEVICE, dtype=torch.bfloat16)
        facts = dict(tokens=tokens, heads=heads, head=head, state=state, chunk=chunk)
        row("chunk scan: C by B", "us", device(lambda: torch.bmm(c, b.transpose(1, 2))), **facts)
        row("chunk scan: masked by X", "us", device(lambda: torch.bmm(g, x)), **facts)


BLOCKS = [single_operations, eager_layers, graphs, optimizers, collectives, grouped_products, routers, expert_layers,
          fully_sharded, fully_sharded_once, data_parallel, recomputed_layers, losses, scans, compiled_layers]


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return "unknown"


def main():
    parser = argparse.ArgumentParser(description="Measures PyTorch's host times, and kernels of experts.")
    parser.add_argument("--out", required=True, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=90, help="no block begins later (default: 90)")
    parser.add_argument("--only", nargs="*", choices=[b.__name__ for b in BLOCKS], help="these blocks alone")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch_host_times: PyTorch finds no GPU")
    versions = dict(torch=torch.__version__, cuda=torch.version.cuda)
    try:
        import transformers
        versions["transformers"] = transformers.__version__
    except ImportError:
        pass
    machine = dict(gpu=torch.cuda.get_device_name(0), processor=processor(), cores=os.cpu_count(),
                   date=time.strftime("%Y-%m-%d"), **versions)
    start = time.monotonic()

    def save():
        with open(options.out + ".new", "w", encoding="utf-8") as file:
            json.dump(dict(machine=machine, rows=ROWS, skipped=SKIPPED), file, indent=1)
            file.write("\n")
        os.replace(options.out + ".new", options.out)
    for block in BLOCKS:
        if options.only and block.__name__ not in options.only:
            continue
        if time.monotonic() - start > options.seconds:
            SKIPPED.append(block.__name__ + ": no time left")
            continue
        begin = time.monotonic()
        try:
            block()
        except Exception as problem:  # whatever is missing here
            SKIPPED.append("%s: %s" % (block.__name__, str(problem).strip().split("\n")[0][:300]))
            traceback.print_exc()
        print("-- %s: %.1f s" % (block.__name__, time.monotonic() - begin), flush=True)
        save()
    save()
    for line in SKIPPED:
        print("left out: " + line)


if __name__ == "__main__":
    main()
