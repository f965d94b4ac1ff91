#!/usr/bin/env python3
"""What PyTorch takes on this GPU for the kernels of frameworks, as a profile that foretrain reads.

    tools/torch_prices.py --out torch.json [--merge PROFILE --merged FILE] [--seconds 60]
    foretrain simulate llama-3-8b-8-h100 --profile torch.json

Norms, rotations, gated and plain activations, residual additions, attention by backend, the fused AdamW, passes over
gradients and parameters, for the shapes that four shipped runs have on a rank. Samples are `by: framework`: they price
what a framework runs, not what `foretrain execute` does. Keys are the texts that foretrain writes for the same works,
bytes included (docs/reference/programs.md), so that a run finds them as its own.

Times are of CUDA events around replays of a CUDA graph (without one, around the operations): no host time is in them.
Operands turn through four times the L2 and are normal numbers; before attention is timed the device is kept busy.
Fused kernels are TransformerEngine's or Apex's where they are installed, else PyTorch's own; what only a compiler fuses
is compiled by torch.compile. Launches are host time: of one operation eagerly, and of one in a graph that is replayed.

Left out: losses but for the maximum of rows, which no PyTorch operation matches one to one; gradients of embeddings;
JAX, whose runs find these samples too.
"""
import argparse
import glob
import json
import os
import subprocess
import sys
import threading
import time

SCHEMA = "foretrain/profile/2"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BF16 = 2  # bytes

# Of a rank of these runs: rows and width of norms, tokens, what an activation gets, heads and length of attention,
# columns of logits, elements of a bucket; `gradients`: bytes that an element of a weight's gradient moves.
RUNS = {
    "llama-3-8b-8-h100": dict(
        norm="rms", rows=4096, hidden=4096, tokens=8192, swiglu=7168, batch=1, heads=16, keys=4, length=8192, head=128,
        vocabulary=64128, bucket=10000000, gradients=8),
    "llama-3.1-405b-16384-h100": dict(
        norm="rms", rows=1024, hidden=16384, tokens=8192, swiglu=6656, batch=1, heads=16, keys=1, length=8192, head=128,
        vocabulary=16128, bucket=1000064, gradients=8),
    "maxtext-llama-2-70b-64-h100": dict(
        norm="rms", rows=8192, hidden=8192, tokens=8192, swiglu=28672, batch=2, heads=64, keys=8, length=4096, head=128,
        vocabulary=32000, bucket=13369600, gradients=2, copies=False),
    "composer-mpt-7b-8-h100": dict(
        norm="layer", rows=12288, hidden=4096, tokens=12288, gelu=16384, vocabulary=50432, bucket=25166848,
        gradients=2, copies=False, adam=False),
}
TINY = dict(norm="rms", rows=32, hidden=64, tokens=32, swiglu=48, gelu=48, batch=1, heads=4, keys=2, length=32, head=16,
            vocabulary=96, bucket=4096, gradients=8)
# Other lengths and heads, which prices lie between.
MORE_ATTENTION = [(1, 32, 32, 2048, 128), (1, 32, 8, 4096, 128), (2, 32, 32, 2048, 64), (1, 16, 16, 16384, 128)]
BACKENDS = {"flash2": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "unfused": "MATH"}
LONGEST_UNFUSED = 4096
# Bytes an element that eager PyTorch moves besides the operands (docs/explanation/memory-bound-prices.md).
EAGER = {"rms-norm": 32, "rms-norm-backward": 72, "swiglu": 4, "swiglu-backward": 8, "rope": 18, "rope-backward": 26}


class Item:
    """A sample to take: its key, and `make`, which gives a function that does it once on operands of its own."""

    def __init__(self, op, shape, size, dtype, make, of, **options):
        self.op, self.shape, self.size, self.dtype, self.make, self.of = op, shape, size, dtype, make, of
        self.bytes = options.get("bytes", size)
        self.state = options.get("state", "")
        self.compiled = options.get("compiled", False)


def kernel(kind, rows, cols, moved, make, of, dtype="bf16", compiled=False):
    return Item(kind, "%s %dx%d %s %d B" % (kind, rows, cols, dtype, moved), moved, dtype, make, of, compiled=compiled)


def attention(batch, heads, keys, length, head, backward, name, of):
    """As text_of writes it; its FLOPs as flops_of counts them (half of them are masked but for `unfused`)."""
    op = "attention-backward" if backward else "attention"
    shape = "%s batch %d heads %d/%d length %dx%d head %d causal %s bf16" % (
        op, batch, heads, keys, length, length, head, name)
    unfused = name == "unfused"
    pairs = batch * heads * length * (length if unfused else length / 2)
    products = (4 if unfused else 5) if backward else 2
    moved = BF16 * batch * length * head * (2 * heads + 2 * keys) * (2 if backward else 1)
    return Item(op + " causal " + name, shape, 2.0 * pairs * products * head, "bf16",
                lambda t: t.attention(batch, heads, keys, length, head, backward, BACKENDS[name]), of,
                bytes=moved, state="sustained")


def norms(run, s):
    r, c = s["rows"], s["hidden"]
    element, kind = BF16 * r * c, s["norm"] + "-norm"
    kept = r * (4 if s["norm"] == "rms" else 8) + BF16 * c
    # PyTorch's own layer norm takes two launches backward, as Composer's runs have it.
    besides = 8 * r * c if s["norm"] == "layer" else 0
    forms = [(False, 0, besides)]
    if kind in EAGER:
        forms.append((True, EAGER[kind] * r * c, EAGER[kind + "-backward"] * r * c))
    for eager, forward, backward in forms:
        yield kernel(kind, r, c, 2 * element + kept + forward,
                     lambda t, e=eager: t.norm(kind, r, c, e), run)
        for residual in (False, True):
            moved = (4 if residual else 3) * element + kept + s["gradients"] * c + backward
            yield kernel(kind + "-backward", r, c, moved,
                         lambda t, e=eager, a=residual: t.norm_backward(kind, r, c, e, a), run)
    yield kernel("residual-add", r, c, 3 * element, lambda t: t.residual_add(r, c), run)


def activations(run, s):
    r = s["tokens"]
    for kind, operands in (("swiglu", (3, 5)), ("gelu", (2, 3))):
        if kind not in s:
            continue
        c = s[kind]
        for backward in (False, True):
            name = kind + ("-backward" if backward else "")
            moved = operands[backward] * BF16 * r * c
            yield kernel(name, r, c, moved,
                         lambda t, k=kind, b=backward: t.activation(k, r, s[k], b, k == "swiglu"), run,
                         compiled=kind == "swiglu")
            if name in EAGER:
                yield kernel(name, r, c, moved + EAGER[name] * r * c,
                             lambda t, k=kind, b=backward: t.activation(k, r, s[k], b, False), run)


def rotations(run, s):
    if "heads" not in s or s["norm"] == "layer":
        return
    r, q, k, head = s["tokens"], s["heads"], s["keys"], s["head"]
    cols = (q + k) * head
    for backward in (False, True):
        name = "rope-backward" if backward else "rope"
        moved = 2 * BF16 * r * (q + 2 * k) * head
        for compiled, besides in ((True, 0), (False, EAGER[name] * r * cols)):
            yield kernel(name, r, cols, moved + besides,
                         lambda t, b=backward, f=compiled: t.rope(r, q, k, head, b, f), run,
                         compiled=compiled)


def updates(run, s):
    n = s["bucket"]
    if s.get("adam", True):
        yield kernel("adam", 1, n, 28 * n, lambda t: t.adam(n), run, "fp32")
    if s.get("copies", True):
        yield kernel("cast", 1, n, 6 * n, lambda t: t.cast(n), run, "fp32")
    yield kernel("squared-norm", 1, n, 4 * n + 8, lambda t: t.squared_norm(n), run, "fp32")
    yield kernel("scale", 1, n, 8 * n + 4, lambda t: t.scale(n), run, "fp32")


def ends(run, s):
    r, c = s["tokens"], s["hidden"]
    yield kernel("embedding", r, c, 2 * BF16 * r * c + 8 * r, lambda t: t.embedding(r, c), run)
    if "vocabulary" in s:
        v = s["vocabulary"]
        yield kernel("loss-max", r, v, BF16 * r * v + 4 * r, lambda t: t.loss_max(r, v), run)


def attentions(run, s):
    if "heads" not in s:
        return
    for name in BACKENDS:
        if name == "unfused" and s["length"] > LONGEST_UNFUSED:
            continue
        for backward in (False, True):
            yield attention(s["batch"], s["heads"], s["keys"], s["length"], s["head"], backward, name, run)


def all_items(runs, more):
    """The most telling first, what takes seconds to compile last; every key once."""
    out, seen = [], set()
    for part in (norms, attentions, activations, updates, rotations, ends):
        for run, sizes in runs.items():
            out += part(run, sizes)
    for sizes in more:
        for name in BACKENDS:
            if name == "unfused" and sizes[3] > LONGEST_UNFUSED:
                continue
            out += [attention(*sizes, backward, name, "") for backward in (False, True)]
    out.sort(key=lambda item: item.compiled)
    return [i for i in out if not ((i.op, i.shape) in seen or seen.add((i.op, i.shape)))]


class Skipped(Exception):
    """Why a sample cannot be taken here."""


class Torch:
    """The operations, on one device of PyTorch's. Each method gives a function that does one, operands of its own."""

    def __init__(self, device):
        import torch
        self.torch, self.f, self.device = torch, torch.nn.functional, device
        self.cuda = device == "cuda"
        self.stream = torch.cuda.Stream() if self.cuda else None
        self.fused_by = ""  # who fused what was made last
        self.compiled = {}

    def random(self, *shape, grad=False, dtype=None):
        x = self.torch.randn(*shape, device=self.device, dtype=dtype or self.torch.bfloat16)
        return x.requires_grad_(grad)

    def backward(self, y, inputs, then=None):
        d_y = self.torch.randn_like(y)

        def once():
            grads = self.torch.autograd.grad(y, inputs, d_y, retain_graph=True)
            if then is not None:
                then(grads)
        return once

    def compile(self, function):
        if not self.cuda or not hasattr(self.torch, "compile"):
            raise Skipped("torch.compile, which fuses it, is not used here")
        self.fused_by = "torch.compile"
        if function not in self.compiled:
            self.compiled[function] = self.torch.compile(function, dynamic=False)
        return self.compiled[function]

    def norm_function(self, kind, c, eager):
        weight = self.random(c, grad=True)
        if eager:
            def composed(x):
                wide = x.float()
                wide = wide * self.torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
                return weight * wide.to(x.dtype)
            return composed, weight
        layer = kind == "layer-norm"
        if not layer and self.cuda:  # Composer's layer norms are PyTorch's
            try:
                import transformer_engine
                import transformer_engine.pytorch as te
                module = te.RMSNorm(c, eps=1e-5, params_dtype=self.torch.bfloat16, device=self.device)
                self.fused_by = "TransformerEngine " + getattr(transformer_engine, "__version__", "")
                return module, module.weight
            except Exception:
                pass
            try:
                from apex.normalization import FusedRMSNorm
                module = FusedRMSNorm(c, eps=1e-5).to(self.device, self.torch.bfloat16)
                self.fused_by = "Apex"
                return module, module.weight
            except Exception:
                pass
        if layer:
            return lambda x: self.f.layer_norm(x, (c,), weight, None, 1e-5), weight
        if not hasattr(self.f, "rms_norm"):
            raise Skipped("this PyTorch has no rms_norm, and neither TransformerEngine nor Apex is there")
        return lambda x: self.f.rms_norm(x, (c,), weight, 1e-5), weight

    def norm(self, kind, r, c, eager):
        function, _ = self.norm_function(kind, c, eager)
        x = self.random(r, c, grad=True)
        return lambda: function(x)

    def norm_backward(self, kind, r, c, eager, residual):
        function, weight = self.norm_function(kind, c, eager)
        x = self.random(r, c, grad=True)
        other = self.random(r, c) if residual else None
        add = (lambda grads: grads[0].add_(other)) if residual else None
        return self.backward(function(x), (x, weight), add)

    def residual_add(self, r, c):
        x, y = self.random(r, c), self.random(r, c)
        return lambda: x + y

    def activation(self, kind, r, c, backward, compiled):
        x = self.random(r, 2 * c if kind == "swiglu" else c, grad=True)
        function = self.swiglu if kind == "swiglu" else self.f.gelu
        if compiled:
            function = self.compile(function)
        return self.backward(function(x), (x,)) if backward else lambda: function(x)

    def swiglu(self, x):
        gate, up = x.chunk(2, -1)
        return self.f.silu(gate) * up

    def rotate(self, qk, cos, sin):
        first, second = qk.chunk(2, -1)
        return qk * cos + self.torch.cat((-second, first), -1) * sin

    def rope(self, r, q, k, head, backward, compiled):
        qkv = self.random(r, q + 2 * k, head, grad=True)
        cos, sin = self.random(r, 1, head), self.random(r, 1, head)
        function = self.compile(self.rotate) if compiled else self.rotate
        if not backward:
            return lambda: function(qkv[:, :q + k], cos, sin)
        return self.backward(function(qkv[:, :q + k], cos, sin), (qkv,))

    def attention(self, batch, heads, keys, length, head, backward, backend):
        try:
            from torch.nn.attention import SDPBackend, sdpa_kernel
        except ImportError:
            raise Skipped("this PyTorch does not choose attention's backend") from None
        if not hasattr(SDPBackend, backend):
            raise Skipped("this PyTorch has no " + backend)
        x = [self.random(batch, n, length, head, grad=True) for n in (heads, keys, keys)]
        grouped = {"enable_gqa": True} if keys != heads else {}
        one = getattr(SDPBackend, backend)

        def forward():
            with sdpa_kernel([one]):
                return self.f.scaled_dot_product_attention(*x, is_causal=True, **grouped)
        return self.backward(forward(), tuple(x)) if backward else forward

    def adam(self, n):
        p = self.torch.nn.Parameter(self.random(n, dtype=self.torch.float32))
        p.grad = self.random(n, dtype=self.torch.float32)
        how = {"capturable": True} if self.cuda else {}
        return self.torch.optim.AdamW([p], fused=True, **how).step

    def cast(self, n):
        wide, narrow = self.random(n, dtype=self.torch.float32), self.random(n)
        return lambda: narrow.copy_(wide)

    def squared_norm(self, n):
        x = self.random(n, dtype=self.torch.float32)
        return lambda: self.torch.linalg.vector_norm(x)

    def scale(self, n):
        x = self.random(n, dtype=self.torch.float32)
        by = self.torch.ones((), device=self.device)
        return lambda: x.mul_(by)

    def embedding(self, r, c):
        table = self.random(4 * r, c)
        tokens = self.torch.randint(0, 4 * r, (r,), device=self.device)
        return lambda: self.f.embedding(tokens, table)

    def loss_max(self, r, v):
        x = self.random(r, v)
        return lambda: self.torch.amax(x, -1)


class Clock:
    """Times what `Torch` makes."""

    def __init__(self, torch):
        self.t = torch
        self.cache = 1 << 20
        self.memory = 4 << 30
        if torch.cuda:
            properties = torch.torch.cuda.get_device_properties(0)
            self.cache = getattr(properties, "L2_cache_size", 0) or 50 << 20
            self.memory = torch.torch.cuda.mem_get_info()[0]

    def sets_of(self, item):
        most = int(self.memory * 0.4 / max(1, 3 * item.bytes))
        if most < 1:
            raise Skipped("its operands do not fit")
        return max(1, min(most, 64, 1 + int(4 * self.cache / max(1, item.bytes))))

    def measure(self, item, seconds):
        """Microseconds of one operation, many times."""
        sets = self.sets_of(item)
        if not self.t.cuda:
            return self.on_host([item.make(self.t) for _ in range(sets)], seconds)
        cuda = self.t.torch.cuda
        with cuda.stream(self.t.stream):
            todo = [item.make(self.t) for _ in range(sets)]
            for _ in range(2):
                for one in todo:
                    one()
            cuda.synchronize()
            replay = self.graph_of(todo)
            if item.state == "sustained":
                self.spend(replay, max(0.3, seconds / 2))
            return self.on_device(replay, len(todo), seconds)

    def graph_of(self, todo):
        cuda = self.t.torch.cuda
        def eagerly():
            for one in todo:
                one()
        try:
            graph = cuda.CUDAGraph()
            with cuda.graph(graph, stream=self.t.stream):
                eagerly()
            return graph.replay
        except RuntimeError:
            cuda.synchronize()
            return eagerly

    def spend(self, replay, seconds):
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            replay()
            self.t.torch.cuda.synchronize()

    def on_device(self, replay, ops, seconds):
        cuda, out = self.t.torch.cuda, []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(out) < 5:
            marks = [cuda.Event(enable_timing=True) for _ in range(11)]
            for mark in marks[:-1]:
                mark.record()
                replay()
            marks[-1].record()
            marks[-1].synchronize()
            out += [1e3 * a.elapsed_time(b) / ops for a, b in zip(marks, marks[1:])]
        return out

    def on_host(self, todo, seconds):
        out, end = [], time.perf_counter() + seconds
        for one in todo:
            one()
        while time.perf_counter() < end or len(out) < 5:
            start = time.perf_counter()
            for one in todo:
                one()
            out.append(1e6 * (time.perf_counter() - start) / len(todo))
        return out

    def launches(self):
        """Host microseconds of an operation: eagerly, and of a replayed graph of 1000."""
        x, count = self.t.random(8), 1000
        sync = self.t.torch.cuda.synchronize if self.t.cuda else lambda: None

        def time_of(call, times, ops):
            out = []
            for _ in range(20):
                sync()
                start = time.perf_counter()
                for _ in range(times):
                    call()
                out.append(1e6 * (time.perf_counter() - start) / (times * ops))
            sync()
            return out
        yield "launch", "by the host", time_of(lambda: x.add_(1), count // 2, 1)
        if not self.t.cuda:
            return
        with self.t.torch.cuda.stream(self.t.stream):
            replay = self.graph_of([lambda: x.add_(1)] * count)
            yield "graph-launch", "by the host, captured", time_of(replay, 1, count)


class Readings(threading.Thread):
    """Clock, power and temperature of GPU 0 by nvidia-smi, while it can be had."""
    NAMES = ("clock_mhz", "power_w", "temperature_c")

    def __init__(self):
        super().__init__(daemon=True)
        self.all = []
        try:
            self.source = subprocess.Popen(
                ["nvidia-smi", "-i", "0", "-lms", "100", "--format=csv,noheader,nounits",
                 "--query-gpu=clocks.sm,power.draw,temperature.gpu"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True)
            self.start()
        except OSError:
            self.source = None

    def run(self):
        for line in self.source.stdout:
            try:
                self.all.append((time.perf_counter(), [float(v) for v in line.split(",")]))
            except ValueError:
                continue

    def medians(self, begin, end):
        rows = [values for at, values in list(self.all) if begin <= at <= end]
        return {n: sorted(column)[len(rows) // 2] for n, column in zip(self.NAMES, zip(*rows))} if rows else {}

    def stop(self):
        if self.source is not None:
            self.source.terminate()


def sample(op, shape, dtype, size, times, library, state="", ran_at=None):
    times = sorted(times)
    at = lambda share: times[min(len(times) - 1, int(share * len(times)))]
    usual = [t for t in times if t <= 3 * at(0.5)]
    out = dict(op=op, shape=shape, ranks=1)
    if state:
        out["state"] = state
    out.update(by="framework", dtype=dtype, library=library, size=float(size), count=len(times), median_us=at(0.5),
               p10_us=at(0.1), p90_us=at(0.9), mean_us=sum(usual) / len(usual), clean=True, stopped="time")
    out.update(ran_at or {})
    return out


def device_called(name):
    """The shipped device whose driver's names have this one; "" where none has."""
    for path in sorted(glob.glob(os.path.join(ROOT, "configs", "devices", "*.json"))):
        with open(path, encoding="utf-8") as file:
            device = json.load(file)
        if name in device.get("cuda_names", []):
            return device["name"]
    return ""


def library_of(torch):
    out = "PyTorch " + torch.__version__
    if torch.version.cuda:
        out += ", CUDA " + torch.version.cuda
    if torch.backends.cudnn.is_available():
        out += ", cuDNN %s" % torch.backends.cudnn.version()
    return out


def identify(options):
    """What is measured: the machine of the profile, and the library of its samples."""
    if options.dry_run:
        processor, library = "no GPU: times are made up", "PyTorch, times made up"
    else:
        try:
            import torch
        except ImportError as missing:
            sys.exit("torch_prices: %s: run it where PyTorch 2 is installed; --dry-run lists the shapes without" %
                     missing)
        if options.device == "cuda" and not torch.cuda.is_available():
            sys.exit("torch_prices: PyTorch finds no GPU; --device cpu measures the processor instead")
        processor = torch.cuda.get_device_name(0) if options.device == "cuda" else "the host's cores"
        library = library_of(torch)
    device = options.name or device_called(processor)
    if not device and options.device == "cpu":
        device = "host-by-torch"
    if not device:
        sys.exit("torch_prices: no shipped device is called \"%s\" by its driver; --name DEVICE says which it is" %
                 processor)
    machine = dict(device=device, processor=processor, cores=1, blas=library, date=time.strftime("%Y-%m-%d"),
                   command="tools/torch_prices.py " + " ".join(sys.argv[1:]))
    return machine, library


def measure_all(items, options, library, save):
    """`save` is called with what there is behind every sample: this may be ended at any time."""
    samples, skipped = [], []
    clock = Clock(Torch(options.device))
    readings = Readings() if options.device == "cuda" else None
    for op, shape, times in clock.launches():
        samples.append(sample(op, shape, "fp32", 1, times, library))
    end = time.monotonic() + options.seconds
    for done, item in enumerate(items):
        left = end - time.monotonic()
        if left <= 0:
            skipped += ["%s: no time left" % i.shape for i in items[done:]]
            break
        clock.t.fused_by, begin = "", time.perf_counter()
        try:
            # Half of an item's time goes into operands and waiting.
            times = clock.measure(item, min(1.0, 0.5 * left / (len(items) - done)))
        except Exception as problem:  # whatever a backend or a compiler refuses with
            skipped.append("%s: %s" % (item.shape, str(problem).strip().split("\n")[0][:200]))
            continue
        ran_at = readings.medians(begin, time.perf_counter()) if readings else {}
        by = library + (", " + clock.t.fused_by if clock.t.fused_by else "")
        samples.append(sample(item.op, item.shape, item.dtype, item.size, times, by, item.state, ran_at))
        print("%9.1f us  %s" % (samples[-1]["median_us"], item.shape), flush=True)
        save(samples, skipped)
    if readings:
        readings.stop()
    return samples, skipped


def make_up(items, library):
    """Without a GPU: a TB/s, or a PFLOP/s."""
    out = [sample("launch", "by the host", "fp32", 1, [5.0], library)]
    for i in items:
        rate = 1e9 if i.op.startswith("attention") else 1e6
        out.append(sample(i.op, i.shape, i.dtype, i.size, [i.size / rate], library, i.state))
    return out


def write(path, profile):
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(profile, file, indent=2)
        file.write("\n")
    os.replace(path + ".new", path)


def merge(base, profile):
    """`base` with the samples of `profile`, which replace those of the same keys."""
    key = lambda s: (s["op"], s.get("shape", ""), s.get("ranks", 1), s.get("state", ""), s.get("sms_beside", 0),
                     s.get("by", ""), s.get("spin_beside", False))
    mine = {key(s) for s in profile["samples"]}
    samples = [s for s in base["samples"] if key(s) not in mine] + profile["samples"]
    return dict(base, machine=dict(base["machine"], frameworks=profile["machine"]["blas"]), samples=samples)


def main():
    parser = argparse.ArgumentParser(description="Measures PyTorch's kernels into a profile of foretrain.")
    parser.add_argument("--out", metavar="FILE", help="the profile to write")
    parser.add_argument("--merge", help="a profile of the same device that gets these samples too")
    parser.add_argument("--merged", help="where to write that (default: over it)")
    parser.add_argument("--name", default="", help="the device preset that the GPU is, e.g. h100-sxm-80gb")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda",
                        help="what is measured (default: cuda; cpu is for trying the script)")
    parser.add_argument("--seconds", type=float, default=60, help="time for all shapes (default: 60)")
    parser.add_argument("--of", choices=sorted(RUNS), action="append", help="only shapes of this run (repeatable)")
    parser.add_argument("--tiny", action="store_true", help="shapes that a processor takes no time for")
    parser.add_argument("--dry-run", action="store_true",
                        help="print the keys; into --out times that are made up. Needs no PyTorch")
    options = parser.parse_args()
    if not (options.out or options.merge or options.dry_run):
        parser.error("nothing to write: give --out or --merge")
    runs = {"": TINY} if options.tiny else {run: RUNS[run] for run in RUNS if run in (options.of or RUNS)}
    items = all_items(runs, [] if options.tiny or options.of else MORE_ATTENTION)
    base = None
    machine, library = identify(options) if options.out or options.merge else ({}, "")
    if options.merge:
        with open(options.merge, encoding="utf-8") as file:
            base = json.load(file)
        found = base.get("machine", {}).get("device")
        if base.get("schema") != SCHEMA or found != machine["device"]:
            sys.exit("torch_prices: --merge %s: found a %s of device %s, expected a %s of %s" %
                     (options.merge, base.get("schema"), found, SCHEMA, machine["device"]))

    def save(samples, skipped):
        profile = dict(schema=SCHEMA, machine=dict(machine, skipped=skipped), samples=samples, fits=[])
        if options.out:
            write(options.out, profile)
        if base is not None:
            write(options.merged or options.merge, merge(base, profile))

    if options.dry_run:
        for item in items:
            print("\t".join((item.of, item.op, item.shape)))
        samples, skipped = make_up(items, library) if machine else [], []
    else:
        samples, skipped = measure_all(items, options, library, save)
    if machine:
        save(samples, skipped)
    for line in skipped:
        print("left out: " + line)


if __name__ == "__main__":
    main()
