"""Makes the `fastagg` command, to which the other modules of cli add their commands, and reports errors.

Commands import most modules inside their functions, so that `fastagg --help` takes little time. Results go to stdout.
Progress and errors go to stderr. Exit codes: 0: done. 1: a benchmark failed or became slower, or a folder is damaged or
differs. 2: an error, such as wrong input. 130: ctrl-C.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from inspect import unwrap
from typing import Annotated, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from fastagg._types import Foreign
from fastagg.cli.screen import fail

_base = TyperCommand.__mro__[1].__module__.rpartition(".")[0]  # click, or typer's own copy of it
_errors = import_module(f"{_base}.exceptions")


class Commands(TyperGroup):
    """The group of all commands. An error of fastagg or of the operating system is printed as one line on stderr, and
    the exit code is 2."""

    def invoke(self, ctx: Foreign) -> Foreign:
        from fastagg.errors import FastaggError

        try:
            return super().invoke(ctx)
        except FastaggError as error:
            fail(str(error))
        except BrokenPipeError:  # the reader has ended, as in `fastagg recipes | head`. Typer exits without a message.
            raise
        except OSError as error:  # on a full disk even `import torch` fails, because torch needs a temporary folder
            fail(str(error))


class Command(TyperCommand):
    """A command with plain help. If an option is unknown, but belongs to another command, the message names it.

    This class itself formats the arguments in the help, because releases of typer and of click format them differently.
    """

    def __init__(self, *args: Foreign, **settings: Foreign) -> None:
        super().__init__(*args, **settings)
        assert self.callback is not None
        hints = get_type_hints(unwrap(self.callback), include_extras=True)
        self.arguments: dict[str, str] = {}  # argument -> its name in the help
        for argument in (param for param in self.params if param.param_type_name == "argument"):
            (info,) = hints[str(argument.name)].__metadata__
            shown = info.metavar or str(argument.name).upper() + "..." * (argument.nargs != 1)
            self.arguments[str(argument.name)] = shown if argument.required else f"[{shown}]"
            argument.get_help_record = partial(_record, shown, info.help)  # type: ignore[method-assign]

    def collect_usage_pieces(self, ctx: Foreign) -> list[str]:
        return ["[OPTIONS]", *self.arguments.values()]

    def format_arguments(self, ctx: Foreign, formatter: Foreign) -> None:
        """Write nothing. Otherwise releases of click with a section of arguments would repeat typer's section."""

    def get_help(self, ctx: Foreign) -> str:
        return super().get_help(ctx).replace("\\[", "[")  # typer escapes brackets for rich, which is not used here

    def parse_args(self, ctx: Foreign, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except _errors.NoSuchOption as error:
            message = f"{error.message.rstrip('.')}."  # in some releases of click, the message has no full stop
            if shown := self.arguments.get(error.option_name.removeprefix("--")):
                raise _errors.UsageError(
                    f"{message} It is given without a name: {ctx.command_path} {shown}", ctx
                ) from None
            for other in ctx.parent.command.commands.values():
                akin = unwrap(other.callback).__module__ == unwrap(self.callback or fail).__module__
                if akin and any(error.option_name in option.opts for option in other.params):
                    say = f"{message} It is an option of `{ctx.parent.command_path} {other.name}`."
                    raise _errors.UsageError(say, ctx) from None
            if any("--set" in option.opts for option in self.params) and set(error.possibilities or ()) <= {"--help"}:
                raise _errors.UsageError(f"{message} A recipe's keys are set so: --set client.lr=0.1", ctx) from None
            raise


def _record(shown: str, text: str, ctx: Foreign) -> tuple[str, str]:
    """Return an argument's row in the help: the name ``shown``, and its description ``text``."""
    return shown, text


app = typer.Typer(
    name="fastagg",
    cls=Commands,
    help="The server side of asynchronous federated learning, and a simulator to try it in.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=_base != "click",  # if typer uses the package click, click itself suggests similar commands
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


command = partial(app.command, cls=Command)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as installed

        try:
            print(f"fastagg {installed('fastagg')}")
        except PackageNotFoundError:
            print("fastagg unknown (not installed)")
        raise typer.Exit
