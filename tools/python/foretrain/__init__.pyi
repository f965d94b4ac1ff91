from os import PathLike
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Union

_Path = Union[str, PathLike[str]]
_Run = Union[Mapping[str, Any], str, PathLike[str]]
_Texts = Union[str, Iterable[str]]
_Paths = Union[_Path, Iterable[_Path]]
_Result = Dict[str, Any]
_Sets = Optional[Mapping[str, Any]]
_Price = Union[float, str]

__version__: str
__revision__: str

class Error(Exception):
    messages: List[str]
    def __init__(self, messages: Iterable[str]) -> None: ...

class InputError(Error, ValueError): ...
class UnsupportedError(InputError): ...

class ConditionError(Error):
    result: Optional[_Result]

class IdleKeyWarning(UserWarning): ...

def simulate(
    run: _Run,
    *,
    sets: _Sets = ...,
    trace: Optional[_Path] = ...,
    timeline: Optional[_Path] = ...,
    report: Optional[_Path] = ...,
    trace_ranks: Union[int, Sequence[int], None] = ...,
    full: bool = ...,
    verify: bool = ...,
    advice: bool = ...,
    require_fit: Optional[float] = ...,
    max_step_s: Optional[float] = ...,
    **keys: Any,
) -> _Result: ...
def search(
    run: _Run,
    *,
    sets: _Sets = ...,
    fix: Optional[_Texts] = ...,
    free: Optional[_Texts] = ...,
    range: Optional[_Texts] = ...,
    where: Optional[_Texts] = ...,
    over: Optional[_Texts] = ...,
    clusters: Optional[_Texts] = ...,
    accelerators: Union[int, Sequence[int], None] = ...,
    allow_numerics: Optional[bool] = ...,
    objective: Optional[str] = ...,
    price: Union[_Price, Iterable[_Price], None] = ...,
    budget: Optional[float] = ...,
    threads: Optional[int] = ...,
    resume: Optional[_Path] = ...,
    out: Optional[_Path] = ...,
    csv: Optional[_Path] = ...,
    report: Optional[_Path] = ...,
    **keys: Any,
) -> _Result: ...
def goodput(
    run: _Run,
    *,
    sets: _Sets = ...,
    clusters: Optional[_Texts] = ...,
    policies: Optional[_Texts] = ...,
    campaigns: Optional[int] = ...,
    seed: Optional[int] = ...,
    threads: Optional[int] = ...,
    advice: bool = ...,
    trace: Optional[_Path] = ...,
    report: Optional[_Path] = ...,
    **keys: Any,
) -> _Result: ...
def compare(
    a: _Run,
    b: Optional[_Run] = ...,
    *,
    sets: _Sets = ...,
    steps: Optional[int] = ...,
    step_name: Optional[str] = ...,
    gpu_steps: bool = ...,
    trace: Optional[_Path] = ...,
    profile: Optional[_Path] = ...,
    report: Optional[_Path] = ...,
    **keys: Any,
) -> _Result: ...
def import_run(
    files: _Paths,
    *,
    from_: Optional[str] = ...,
    cluster: Optional[_Path] = ...,
    accelerators: Optional[int] = ...,
    sets: _Sets = ...,
    out: Optional[_Path] = ...,
    strict: bool = ...,
    **keys: Any,
) -> _Result: ...
def export_run(
    run: _Run,
    to: str,
    *,
    sets: _Sets = ...,
    out: Optional[_Path] = ...,
    strict: bool = ...,
    **keys: Any,
) -> _Result: ...
