"""Predicts LLM pre-training runs before the money is spent.

    >>> import foretrain
    >>> result = foretrain.simulate("llama-3-8b-8-h100", parallel__tensor=2)
    >>> result["iteration_time_s"], result["memory"]["fits"]

A RUN is a dict, a path, or the name of a shipped one. Every function answers with the dict that its
verb writes with `--json`, and raises `InputError` with the messages that the verb prints.

A keyword that is no option of a function sets a key of the RUN, as `--set` does: `__` stands for the
dot (`parallel__tensor=4` is `--set parallel.tensor=4`). `sets` takes the same as a dict of dotted keys:
`sets={"parallel.tensor": 4}`. A dict as a value replaces the whole section.

The interpreter's lock is free while a function computes, so threads run side by side. Ctrl-C stops it.
"""

from __future__ import annotations

import json as _json
import os as _os
import warnings as _warnings
from collections.abc import Mapping as _Mapping

from . import _foretrain

__all__ = [
    "ConditionError",
    "Error",
    "IdleKeyWarning",
    "InputError",
    "UnsupportedError",
    "compare",
    "export_run",
    "goodput",
    "import_run",
    "search",
    "simulate",
]

__version__ = _foretrain.version
__revision__ = _foretrain.revision


class Error(Exception):
    """What a verb tells on standard error.

    `messages` holds each fault, with its place, what was found and what is accepted.
    """

    def __init__(self, messages):
        super().__init__("\n".join(messages))
        self.messages = list(messages)

    def __reduce__(self):
        return (type(self), (self.messages,), self.__dict__)


class InputError(Error, ValueError):
    """The RUN, an option or the environment is at fault: exit code 1 of the command."""


class UnsupportedError(InputError):
    """The RUN is valid, and this version does not model it."""


class ConditionError(Error):
    """What was asked to hold does not: exit code 3 of the command. `result` holds what is known."""

    result = None


class IdleKeyWarning(UserWarning):
    """A key of the RUN has no effect; the text says why."""


_ERRORS = {"input": InputError, "unsupported": UnsupportedError, "condition": ConditionError}


def _plain(value):
    """Paths, and numbers of other libraries, as JSON has them."""
    if isinstance(value, _os.PathLike):
        return _os.fspath(value)
    if isinstance(value, _Mapping):
        return dict(value)
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return value.item()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"a value of a RUN is a {type(value).__name__}, which JSON has not")


def _dump(value):
    return _json.dumps(value, default=_plain)


def _run_text(run, name="run"):
    """A RUN as the verbs take it: a path, a name, or the object as JSON."""
    if isinstance(run, (str, _os.PathLike)):
        return _os.fspath(run)
    if isinstance(run, _Mapping):
        return _dump(dict(run))
    raise TypeError(f"{name}: expected a dict, a path or a name, found {type(run).__name__}")


def _flat_sets(sets, keys):
    """`--set` texts of a dict of dotted keys, and of keyword arguments."""
    dotted = dict(sets or {})
    for key, value in keys.items():
        dotted[key.replace("__", ".")] = value
    return [f"{key}={_dump(value)}" for key, value in dotted.items()]


def _texts(value):
    """One text or path, or a list of them."""
    if value is None:
        return None
    if isinstance(value, (str, _os.PathLike)):
        return [_os.fspath(value)]
    return [_os.fspath(one) for one in value]


def _path(value):
    return None if value is None else _os.fspath(value)


def _call(verb, request):
    given = {key: value for key, value in request.items() if value is not None}
    kind, text, messages, notes = _foretrain.call(verb, _dump(given))
    for note in notes:
        _warnings.warn(note, IdleKeyWarning, stacklevel=3)
    result = _json.loads(text) if text else None
    if not kind:
        return result
    error = _ERRORS[kind](messages)
    if isinstance(error, ConditionError):
        error.result = result
    raise error


def simulate(run, *, sets=None, trace=None, timeline=None, report=None, trace_ranks=None, full=False,
             verify=False, advice=True, require_fit=None, max_step_s=None, **keys):
    """Predicts one run: time, memory, where both go. The dict of `foretrain simulate --json`.

    run: a RUN as a dict, a path, or the name of a shipped one.
    trace, timeline, report: files to write.
    trace_ranks: ranks of these files (default: one of each class of equal ranks).
    full: every rank is simulated instead of one of each class.
    verify: programs are checked for races, leaks and mismatched communication first.
    advice: what would make it fit and what a step gains; False is faster, for sweeps.
    require_fit: the least probability that the run fits; max_step_s: the longest step in seconds.
        Where one of them does not hold, `ConditionError` has the result.
    """
    return _call("simulate", {
        "run": _run_text(run), "sets": _flat_sets(sets, keys), "trace": _path(trace),
        "timeline": _path(timeline), "report": _path(report), "trace_ranks": trace_ranks,
        "full": full, "verify": verify, "advice": advice, "require_fit": require_fit,
        "max_step_s": max_step_s})


def search(run, *, sets=None, fix=None, free=None, range=None, where=None, over=None, clusters=None,
           accelerators=None, allow_numerics=None, objective=None, price=None, budget=None,
           threads=None, resume=None, out=None, csv=None, report=None, **keys):
    """Finds the best plan that fits, with a proof. The dict of `foretrain search --json`.

    What the RUN states stays; what it leaves out is searched.

    fix, free: keys to keep, or to search although the RUN states them.
    range: "KEY=A..B"; where: "memory.peak_gib <= 72"; over: sections or keys to search alone.
    clusters, accelerators: searched in place of the RUN's.
    allow_numerics: precision and the type of gradients are searched too.
    objective: "time", "cost", "energy" or "days"; price: of an accelerator's hour, or
        "CLUSTER=PRICE".
    budget: seconds after which it stops (60); threads: plans looked at at once (all cores).
    resume: a file that keeps what was simulated, from which the next search goes on.
    out, csv, report: files to write.

    Where no plan fits it raises `ConditionError`, whose `result` has the nearest one.
    """
    prices = [price] if isinstance(price, (str, int, float)) else price
    section = {
        "fix": _texts(fix), "free": _texts(free), "range": _texts(range), "where": _texts(where),
        "over": _texts(over), "clusters": _texts(clusters), "accelerators": accelerators,
        "allow_numerics": allow_numerics, "objective": objective,
        "price": None if prices is None else [str(one) for one in prices], "budget": budget}
    if isinstance(accelerators, int):
        section["accelerators"] = [accelerators]
    return _call("search", {
        "run": _run_text(run), "sets": _flat_sets(sets, keys),
        "search": {key: value for key, value in section.items() if value is not None},
        "threads": threads, "resume": _path(resume), "out": _path(out), "csv": _path(csv),
        "report": _path(report)})


def goodput(run, *, sets=None, clusters=None, policies=None, campaigns=None, seed=None, threads=None,
            advice=True, trace=None, report=None, **keys):
    """Weeks of a run with failures, checkpoints, recovery and the bill.

    The dict of `foretrain goodput --json`. The RUN's section `campaign` says what there is to do and
    what goes wrong: `campaign__tokens=2e12, campaign__reliability="llama-3-405b"`.

    clusters: the same campaign on as many accelerators of each of these.
    policies: the same campaign with each of these, or ["all"].
    campaigns: how many are simulated; seed: of the random numbers; threads: at once (all cores).
    advice: the best interval of checkpoints and what helps; False is faster.
    trace, report: files to write.
    """
    return _call("goodput", {
        "run": _run_text(run), "sets": _flat_sets(sets, keys), "clusters": _texts(clusters),
        "policies": _texts(policies), "campaigns": campaigns, "seed": seed, "threads": threads, "advice": advice,
        "trace": _path(trace), "report": _path(report)})


def compare(a, b=None, *, sets=None, steps=None, step_name=None, gpu_steps=False, trace=None,
            profile=None, report=None, **keys):
    """Where the time of two steps goes, predicted or measured; or of one.

    The dict of `foretrain compare --json`. a and b are each a RUN or a result of `simulate` as a
    dict, or a path: a RUN, a result, a timeline, a trace of PyTorch's profiler, an export of Nsight
    Systems, a folder of the traces of several ranks.

    steps: how many steps a trace without annotations holds; step_name: what annotations of steps
        begin with; gpu_steps: a step ends when the GPU has done what its annotation launched.
    trace: a file for both as one Chrome trace; profile: a file for what a trace measured;
    report: a file for a page.
    """
    return _call("compare", {
        "a": _run_text(a, "a"), "b": None if b is None else _run_text(b, "b"),
        "sets": _flat_sets(sets, keys), "steps": steps, "step_name": step_name,
        "gpu_steps": gpu_steps, "trace": _path(trace), "profile": _path(profile),
        "report": _path(report)})


def import_run(files, *, from_=None, cluster=None, accelerators=None, sets=None, out=None,
               strict=False, **keys):
    """Turns launch files of a training framework into a RUN.

    The dict of `foretrain import --json`: "run" is the RUN; "translated", "no_effect",
    "not_modelled" and "unresolved" list what became of each setting.

    files: a path or a list of paths; from_: the framework, where its files do not tell.
    cluster, accelerators: the machine, where the files do not tell; out: a file for the RUN.
    strict: raises `ConditionError` where anything is not modelled.
    """
    return _call("import", {
        "files": _texts(files), "from": from_, "cluster": _path(cluster),
        "accelerators": accelerators, "sets": _flat_sets(sets, keys), "out": _path(out),
        "strict": strict})


def export_run(run, to, *, sets=None, out=None, strict=False, **keys):
    """Writes the launch files that a training framework needs to run the plan.

    The dict of `foretrain export --json`: "files" has each file's "name" and "text",
    "not_expressed" each key that the files do not hold.

    to: "megatron-lm", "deepspeed", "torchtitan", "maxtext" or "composer".
    out: a file, or a folder for all of them.
    strict: raises `ConditionError` where anything is not expressed.
    """
    return _call("export", {
        "run": _run_text(run), "sets": _flat_sets(sets, keys), "to": to, "out": _path(out),
        "strict": strict})
