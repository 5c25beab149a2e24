"""The command line: ``dnncanon``, or ``python -m dnncanon``.

Exit codes: 0 everything tested conforms, 1 something does not, 2 wrong usage, 3 nothing was tested.
"""

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dnncanon.spec import __version__

if TYPE_CHECKING:
    from dnncanon.conformance.shards import Shard

OK, NOT_CONFORMING, USAGE, NOTHING_TESTED = 0, 1, 2, 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; wrong usage is one sentence on stderr."""
    arguments = _parser().parse_args(argv)
    arguments.words = list(sys.argv[1:] if argv is None else argv)
    try:
        code: int = arguments.do(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"dnncanon: interrupted{arguments.interrupted}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has gone, as in `dnncanon list | head -1`; nothing is left to be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except _expected_errors() as error:
        print(f"dnncanon: {error}", file=sys.stderr)
        return USAGE
    return code


def _expected_errors() -> tuple[type[Exception], ...]:
    """Errors that are the user's to mend; anything else is a defect and shows its traceback."""
    from dnncanon.conformance.backends import BackendError
    from dnncanon.conformance.case import CaseError
    from dnncanon.conformance.mutation import MutantError
    from dnncanon.conformance.run import UsageError
    from dnncanon.conformance.shards import MergeError
    from dnncanon.reports import ResultsError

    return (BackendError, CaseError, UsageError, MergeError, MutantError, ResultsError)


# --- Commands -------------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    from dnncanon.conformance.backends import installed
    from dnncanon.conformance.levels import LEVELS
    from dnncanon.conformance.workloads import WORKLOADS
    from dnncanon.spec.book import listing

    print(listing())
    print("\nBackends")
    for name, where in installed().items():
        print(f"  {name:<14} {where}")
    print("\nLevels")
    for level in LEVELS.values():
        print(f"  {level.name:<14} {level.cases} cases of each primitive × dtype: {level.doc}")
    print("\nWorkloads")
    for workload in WORKLOADS.values():
        print(f"  {workload.name:<14} {workload.doc}")
    return OK


def _spec(arguments: argparse.Namespace) -> int:
    from dnncanon.conformance.run import UsageError
    from dnncanon.spec import primitives
    from dnncanon.spec.book import render, render_markdown

    if arguments.primitive not in primitives():
        known = ", ".join(primitives())
        raise UsageError(f"there is no primitive {arguments.primitive!r}; known are {known}")
    write = render_markdown if arguments.markdown else render
    print(write(primitives()[arguments.primitive]))
    return OK


def _run(arguments: argparse.Namespace) -> int:
    from dnncanon.conformance.run import RESULTS, Options, run
    from dnncanon.reports import summary_text

    options = Options(
        backend=arguments.backend,
        out=Path(arguments.out),
        primitives=_names(arguments.primitive),
        dtypes=_names(arguments.dtype),
        level=arguments.level,
        cases=arguments.cases,
        seed=arguments.seed,
        workload=arguments.workload,
        batch=arguments.batch,
        jobs=arguments.jobs,
        timeout=arguments.timeout,
        memory=arguments.memory,
        shrink_seconds=arguments.shrink,
        require_gpu=arguments.require_gpu,
        fail_fast=arguments.fail_fast,
        resume=arguments.resume,
        shard=arguments.shard,
        expected_failures=arguments.expected_failures and Path(arguments.expected_failures),
        command=shlex.join(["dnncanon", *arguments.words]),
    )
    outcome = run(options)
    print(summary_text(outcome.results, color=sys.stdout.isatty()))
    for path in (options.out / RESULTS, *outcome.files):
        print(f"wrote {path}")
    for entry in outcome.unused_expectations:
        print(f"expected failure that did not happen: {entry.case} ({entry.owner}); take it out")
    return outcome.exit_code


def _repro(arguments: argparse.Namespace) -> int:
    from dnncanon.conformance.case import Case
    from dnncanon.conformance.pool import Pool
    from dnncanon.reports import exit_code

    case = Case.parse(arguments.line)
    with Pool(arguments.backend, timeout=arguments.timeout) as pool:
        result = pool.run(case)
    print(f"{result.verdict}  {result.case}")
    if result.message:
        print(result.message)
    figures = {
        "numerics class": result.numerics,
        "max error / bound": result.max_error,
        "bias, standard deviations": result.bias,
        "mean square, of the model's": result.mean_square,
        "max error, ULP": result.max_ulp,
        "wrong elements": result.wrong_elements,
        "elements": result.elements or None,
        "seconds": result.seconds or None,
    }
    for name, value in figures.items():
        if value is not None:
            print(f"  {name:<28} {value if isinstance(value, str) else format(value, '.6g')}")
    return exit_code({result.verdict: 1})


def _report(arguments: argparse.Namespace) -> int:
    from dnncanon.conformance.run import RESULTS
    from dnncanon.reports import read_results, render, summary_text

    given = Path(arguments.results)
    source = given / RESULTS if given.is_dir() else given
    results = read_results(source)
    files = render(results, Path(arguments.out) if arguments.out else source.parent)
    print(summary_text(results, color=sys.stdout.isatty()))
    for path in files:
        print(f"wrote {path}")
    return OK


def _merge(arguments: argparse.Namespace) -> int:
    from dnncanon.conformance.run import RESULTS, make_folder
    from dnncanon.conformance.shards import merge
    from dnncanon.reports import exit_code, read_results, render, summary_text

    out = Path(arguments.out)
    parts = [read_results(Path(p) / RESULTS if Path(p).is_dir() else p) for p in arguments.results]
    make_folder(out)
    merge(parts, out / RESULTS)
    results = read_results(out / RESULTS)
    files = render(results, out)
    print(summary_text(results, color=sys.stdout.isatty()))
    for path in (out / RESULTS, *files):
        print(f"wrote {path}")
    return exit_code(results.summary.counts) if results.summary else NOT_CONFORMING


def _compare(arguments: argparse.Namespace) -> int:
    from dnncanon.reports import compare, read_results
    from dnncanon.reports.static import compare_static, is_static, read_static

    old, new = (_results_file(Path(path)) for path in arguments.results)
    comparison = (
        compare_static(read_static(old), read_static(new))
        if is_static(old)
        else compare(read_results(old), read_results(new))
    )
    print(comparison.markdown() if arguments.markdown else comparison.text())
    return NOT_CONFORMING if comparison.regressed else OK


def _results_file(given: Path) -> Path:
    """The file itself, or that of a run or a static report in a folder."""
    from dnncanon.conformance.run import RESULTS
    from dnncanon.conformance.static import STATIC

    if not given.is_dir():
        return given
    static = given / STATIC
    return static if static.exists() and not (given / RESULTS).exists() else given / RESULTS


def _bench(arguments: argparse.Namespace) -> int:
    from dnncanon.conformance.mutants import usable_cores
    from dnncanon.conformance.static import StaticOptions, static_report, write_reports
    from dnncanon.reports.static import static_text

    options = StaticOptions(
        backend=arguments.backend,
        out=Path(arguments.out),
        primitives=_names(arguments.primitive),
        dtypes=_names(arguments.dtype),
        architectures=_names(arguments.cc),
        everything=arguments.all,
        jobs=arguments.jobs or usable_cores(),
        command=shlex.join(["dnncanon", *arguments.words]),
    )
    report = static_report(options)
    files = write_reports(report, options.out)
    width = max(100, shutil.get_terminal_size((120, 24)).columns)
    print(static_text(report, color=sys.stdout.isatty(), width=width))
    for path in files:
        print(f"wrote {path}")
    return OK if any(not kernel.refused for kernel in report.kernels) else NOTHING_TESTED


def _mutants(arguments: argparse.Namespace) -> int:
    from dnncanon.conformance.mutants import hunt, page, select, tally, usable_cores
    from dnncanon.conformance.progress import progress_bar

    mutants = arguments.shard.of(select(arguments.name))
    fates = []
    with progress_bar() as progress:
        task = progress.add_task("mutants", total=len(mutants))
        for fate in hunt(
            mutants,
            cases=arguments.cases,
            seed=arguments.seed,
            timeout=arguments.timeout,
            jobs=arguments.jobs or usable_cores(),
            on_fate=lambda: progress.advance(task),
        ):
            fates.append(fate)
            print(fate, flush=True)
    print(f"\n{tally(fates)}")
    amiss = [fate for fate in fates if not fate.as_it_should_be]
    for fate in amiss:
        why = (
            "survived, and nothing says why" if fate.survived else "declared equivalent, but killed"
        )
        print(f"{fate.mutant.name}: {why}")
    if arguments.out:
        path = Path(arguments.out)
        path.write_text(page(fates, shlex.join(["dnncanon", *arguments.words])), "utf-8")
        print(f"wrote {path}")
    if not fates:
        return NOTHING_TESTED
    return NOT_CONFORMING if amiss else OK


def _doctor(arguments: argparse.Namespace) -> int:
    from dnncanon.conformance.doctor import examine

    return examine()


# --- Arguments ------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dnncanon",
        description="The executable standard of deep-learning primitives.",
        epilog="Exit codes: 0 all that was tested conforms, 1 something does not, 2 wrong usage, "
        "3 nothing was tested.",
    )
    parser.add_argument("--version", action="version", version=f"dnncanon {__version__}")
    parser.set_defaults(interrupted="")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("list", help="primitives, backends, levels and workloads")
    command.set_defaults(do=_list)

    command = commands.add_parser("spec", help="the definition of a primitive")
    command.add_argument("primitive")
    command.add_argument("--markdown", action="store_true")
    command.set_defaults(do=_spec)

    command = commands.add_parser("run", help="hold a backend to the reference and write a report")
    _add_run_arguments(command)
    command.set_defaults(do=_run)
    command.set_defaults(interrupted="; what was tested so far is in the results file")

    command = commands.add_parser("repro", help="run one case line again")
    command.add_argument("line", help="a case line, in quotes, as printed by run")
    _add_backend_arguments(command)
    command.set_defaults(do=_repro)

    command = commands.add_parser("report", help="write the reports of a results file again")
    command.add_argument("results", help="results.jsonl, or the folder that holds it")
    command.add_argument("--out", help="folder for the reports; default: beside the results")
    command.set_defaults(do=_report)

    command = commands.add_parser("merge", help="put the shards of one run together")
    command.add_argument("results", nargs="+", help="folders or results files of all shards")
    command.add_argument("--out", default="dnncanon-report", help="folder for the whole")
    command.set_defaults(do=_merge)

    command = commands.add_parser("bench", help="what can be told of a backend's speed")
    _add_bench_arguments(command)
    command.set_defaults(do=_bench)

    command = commands.add_parser("compare", help="what changed between two runs or static reports")
    command.add_argument("results", nargs=2, metavar=("OLD", "NEW"))
    command.add_argument("--markdown", action="store_true")
    command.set_defaults(do=_compare)

    command = commands.add_parser("mutants", help="does the suite notice deliberate defects?")
    command.add_argument("name", nargs="*", help="only these; shell patterns")
    command.add_argument("--cases", type=_positive_integer, default=50, help="cases at most (50)")
    command.add_argument("--seed", type=_seed, default=0)
    command.add_argument("--timeout", type=_positive_number, default=60.0, metavar="SECONDS")
    command.add_argument(
        "--jobs", type=_positive_integer, help="hunted side by side (default: one a core)"
    )
    command.add_argument(
        "--shard",
        type=_shard,
        default="1/1",
        metavar="I/N",
        help="only every N-th, from the I-th on",
    )
    command.add_argument("--out", metavar="FILE", help="write the kill table there, as Markdown")
    command.set_defaults(do=_mutants)

    command = commands.add_parser("doctor", help="what this machine can run, and what is missing")
    command.set_defaults(do=_doctor)
    return parser


def _add_backend_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--backend",
        default="gpu",
        help="an installed backend, package.module or package.module:attribute (default: gpu)",
    )
    command.add_argument(
        "--timeout",
        type=_positive_number,
        default=60.0,
        metavar="SECONDS",
        help="a case may take so long (default: 60)",
    )


def _add_run_arguments(command: argparse.ArgumentParser) -> None:
    _add_backend_arguments(command)
    add = command.add_argument
    add("--primitive", action="append", default=[], help="only this one; may be repeated")
    add("--dtype", action="append", default=[], help="only this one; may be repeated")
    add("--level", default="quick", help="quick, standard or full (default: quick)")
    add(
        "--cases",
        type=_positive_integer,
        help="cases of each primitive × dtype, instead of the level's",
    )
    add("--seed", type=_seed, default=0, help="draw other cases (default: 0)")
    add(
        "--workload",
        default="",
        help="the layers of a network instead of drawn cases, such as resnet50",
    )
    add(
        "--batch", type=_positive_integer, default=1, help="batch size of the workload (default: 1)"
    )
    add("--jobs", type=_positive_integer, default=1, help="worker processes (default: 1)")
    add(
        "--out", default="dnncanon-report", help="folder for the results (default: dnncanon-report)"
    )
    add(
        "--shrink",
        type=_positive_number,
        default=20.0,
        metavar="SECONDS",
        help="time to reduce the first failure of each primitive × dtype (default: 20)",
    )
    add(
        "--memory",
        type=_positive_number,
        metavar="GIB",
        help="memory that each worker may allocate (default: its share of what is free; no limit for "
        "backends on a GPU)",
    )
    add("--require-gpu", action="store_true", help="fail if the backend does not run on a GPU")
    add("--resume", action="store_true", help="go on with the unfinished run in --out")
    add("--shard", type=_shard, default="1/1", metavar="I/N", help="only the I-th of N parts")
    add(
        "--expected-failures",
        metavar="FILE",
        help="TOML file of failures that someone answers for until a date",
    )
    add("--fail-fast", action="store_true", help="stop at the first primitive × dtype that fails")


def _add_bench_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--static",
        action="store_true",
        required=True,
        help="compile the kernels, without a GPU, and count what the compiler made of them",
    )
    add("--backend", default="gpu", help="a backend that has static_figures (default: gpu)")
    add("--primitive", action="append", default=[], help="only this one; may be repeated")
    add(
        "--dtype",
        action="append",
        default=[],
        help="instead of float32 and float16; may be repeated",
    )
    add(
        "--cc",
        action="append",
        default=[],
        metavar="sm_90a",
        help="an architecture, instead of sm_80, sm_90a and sm_100a; may be repeated",
    )
    add("--all", action="store_true", help="every variant of each kernel: far more, far longer")
    add("--jobs", type=_positive_integer, help="processes that compile (default: one a core)")
    add("--out", default="dnncanon-static", help="folder for the report (default: dnncanon-static)")


def _names(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for value in values for name in value.split(","))


def _positive_integer(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not an integer >= 1")
    return value


def _positive_number(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number > 0")
    return value


def _shard(text: str) -> "Shard":
    from dnncanon.conformance.shards import Shard

    try:
        return Shard.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a shard, such as 2/8") from None


def _seed(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**64:
        raise argparse.ArgumentTypeError(f"{text} is not an integer in 0…2^64−1")
    return value


if __name__ == "__main__":
    sys.exit(main())
