"""The commands of the documentation."""

import re
import shlex

import typer

from mpcvit.cli import app
from tests.docs.pages import all_blocks, prose


def commands(page):
    """Every `mpcvit ...` of a page, as words: lines of blocks, and phrases in backticks.

    A changelog's list of what was removed names commands that are gone.
    """
    text = page.read_text("utf-8").replace("\\\n", "")  # a line that goes on in the next
    text = re.sub(r"^### Removed\n.*?(?=^##|\Z)", "", text, flags=re.M | re.S)  # gone on purpose
    lines = [line for body in all_blocks(text) for line in body.splitlines()]
    phrases = re.findall(r"`(mpcvit [^`\n]+)`", prose(text))
    found = []
    for line in (*lines, *phrases):
        line = line.strip().removeprefix(".venv/bin/")
        if line.startswith("mpcvit ") and not line.startswith("mpcvit COMMAND"):
            words = shlex.split(line, comments=True)[1:]
            found.append(words[: words.index(">")] if ">" in words else words)
    return found


def parse(words):
    """Walk down to the command and through its options; gives its name, options and arguments."""
    command, names = typer.main.get_command(app), []
    words = list(words)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name = words.pop(0)
        assert name in command.commands, f"there is no command {' '.join((*names, name))}"
        command = command.commands[name]
        names.append(name)
    known = {
        option: parameter
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    } | dict.fromkeys(("--help", "-h", "--install-completion"))
    options, arguments = [], []
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            arguments.append(word)
            continue
        assert word in known, f"{' '.join(names)} has no option {word}"
        options.append(word)
        if known[word] is not None and not getattr(known[word], "is_flag", False):
            assert words, f"{word} lacks its value"
            words.pop(0)
    return names, options, arguments, command
