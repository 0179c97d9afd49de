"""`headwater`: run an engine and look at its workspace.

Commands that only look open the ledger for reading and never disturb an engine that runs.
Errors are printed with detail and hint; exit code 1 is an error that the user can fix, 2 one
that will pass, 3 a fenced engine, 4 damaged state or a bug of ours.
"""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from headwater.errors import (
    BrokenInvariant,
    DamagedState,
    Fenced,
    HeadwaterError,
    RetryableError,
)

app = typer.Typer(
    name="headwater",
    help="Keeps Spark tables in step with operational databases, exactly once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

WorkspaceOption = Annotated[
    Path,
    typer.Option("--workspace", "-w", help="The engine's folder.", envvar="HW_WORKSPACE"),
]


@app.command()
def run(
    workspace: WorkspaceOption = Path(".headwater"),
    take_over: Annotated[
        bool,
        typer.Option(help="Take the workspace from an engine that still holds it; that one ends."),
    ] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting as name=value; may be repeated."),
    ] = None,
) -> None:
    """Run the engine in the foreground until Ctrl-C or SIGTERM."""
    from headwater.cli.run import run_engine  # noqa: PLC0415  the command line must start fast

    run_engine(workspace, take_over=take_over, settings=_pairs(setting or []))


@app.command()
def serve(  # noqa: PLR0913, PLR0917  one argument per option
    workspace: WorkspaceOption = Path(".headwater"),
    listen: Annotated[
        str, typer.Option(help="Where clients connect, HOST:PORT; port 0 takes a free one.")
    ] = "127.0.0.1:4566",
    take_over: Annotated[
        bool,
        typer.Option(help="Take the workspace from an engine that still holds it; that one ends."),
    ] = False,
    users_file: Annotated[
        Path | None,
        typer.Option(help="Users with passwords, name:password per line; else only root, local."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate for TLS, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key for TLS, PEM.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting as name=value; may be repeated."),
    ] = None,
) -> None:
    """Run the engine with an endpoint for psql and every other PostgreSQL client.

    Prints one line with "ready" and the address once clients can connect (user root, database
    dev). Ends on Ctrl-C or SIGTERM after a last checkpoint.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        # Told to stop before anything has begun.
        signal.signal(number, lambda *_: sys.exit(0))
    from headwater.cli import serve as serving  # noqa: PLC0415  the command line must start fast

    serving.serve(
        workspace,
        listen=listen,
        take_over=take_over,
        users_file=users_file,
        certificate=tls_cert,
        key=tls_key,
        settings=_pairs(setting or []),
    )


@app.command()
def sql(
    workspace: WorkspaceOption = Path(".headwater"),
    command: Annotated[
        str | None, typer.Option("--command", "-c", help="Run this and leave.")
    ] = None,
    connect: Annotated[
        str | None,
        typer.Option(help="A server to talk to, postgresql://root@127.0.0.1:4566/dev."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting as name=value; may be repeated."),
    ] = None,
) -> None:
    """A shell for SQL, for those without psql; reads standard input when that is no terminal.

    Runs an engine on the workspace itself, unless --connect names a server that already does.
    """
    from headwater.cli.shell import shell  # noqa: PLC0415

    shell(workspace, command=command, url=connect, settings=_pairs(setting or []))


@app.command()
def status(workspace: WorkspaceOption = Path(".headwater")) -> None:
    """Show the last epoch, who runs the engine, and the tables with rows and size."""
    from headwater.cli.look import show_status  # noqa: PLC0415

    show_status(workspace)


@app.command()
def epochs(
    workspace: WorkspaceOption = Path(".headwater"),
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="How many to show.")] = 20,
) -> None:
    """List the latest epochs in the ledger with what each of them changed."""
    from headwater.cli.look import show_epochs  # noqa: PLC0415

    show_epochs(workspace, last)


@app.command()
def story(
    epoch: Annotated[int, typer.Argument(help="The epoch's number, as `epochs` shows it.")],
    workspace: WorkspaceOption = Path(".headwater"),
) -> None:
    """Tell everything that the ledger knows about one epoch."""
    from headwater.cli.look import show_story  # noqa: PLC0415

    show_story(workspace, epoch)


@app.command()
def events(
    workspace: WorkspaceOption = Path(".headwater"),
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="How many to show.")] = 20,
) -> None:
    """List what happened: recoveries, failed jobs, unreachable storage, changed settings."""
    from headwater.cli.look import show_events  # noqa: PLC0415

    show_events(workspace, last)


@app.command()
def settings(workspace: WorkspaceOption = Path(".headwater")) -> None:
    """List all settings with value, unit, range and meaning."""
    from headwater.cli.look import show_settings  # noqa: PLC0415

    show_settings(workspace)


def _pairs(given: list[str]) -> dict[str, str]:
    pairs = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise typer.BadParameter(f"{each!r} is not name=value", param_hint="--set")
        pairs[name] = value
    return pairs


def main() -> None:
    """The entry point: run a command, and turn errors into text and an exit code."""
    try:
        app()
    except HeadwaterError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        sys.exit(exit_code(error))


def exit_code(error: HeadwaterError) -> int:
    """Who must act, as a number."""
    match error:
        case Fenced():
            return 3
        case DamagedState() | BrokenInvariant():
            return 4
        case RetryableError():
            return 2
        case _:
            return 1


if __name__ == "__main__":
    main()
