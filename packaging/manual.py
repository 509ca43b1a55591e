#!/usr/bin/env python3
"""manual.py TESSERA FOLDER: the man page and the completions for bash and zsh, made of what the command says of itself.

Writes tessera.1, tessera.bash and _tessera. `tessera --help` lists the commands, `tessera COMMAND --help` their
options; both print the tables that the command is run by (cli/options.c).
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

OPTION = re.compile(r"  (?:(-\w), )?(--[\w-]+)(?: (\S+))? +(\S.*)")


class Option(NamedTuple):
    short: str
    name: str
    value: str
    help: str

    @property
    def spellings(self):
        return [spelling for spelling in (self.short, self.name) if spelling]

    @property
    def words(self):
        """What its value may be, if the help is a list of words such as "ieee, fp32 or tf32"."""
        words = re.split(r", | or ", self.help.replace(" (default)", ""))
        return [word for word in words if word.islower()] if self.value and " " not in "".join(words) else []


class Command(NamedTuple):
    name: str
    summary: str
    usage: str
    description: str
    options: list


def ask(tessera, *words):
    return subprocess.run([tessera, *words, "--help"], check=True, capture_output=True, text=True).stdout


def command(tessera, name, summary):
    said = ask(tessera, name)
    matches = filter(None, map(OPTION.fullmatch, said.splitlines()))
    options = [Option(*(part or "" for part in match.groups())) for match in matches]
    usage, _, rest = said.partition("\n\n")
    return Command(name, summary, usage[len("usage: "):], rest.partition("\n\n  -")[0], options)


def commands(tessera):
    rows = re.findall(r"^  ([a-z]+) +(\S.*)$", ask(tessera), re.M)
    return [command(tessera, name, summary) for name, summary in rows]


# ---- The man page ---------------------------------------------------------------------------------------------------

def roff(text):
    return re.sub(r"(?m)^([.'])", r"\\&\1", text.replace("\\", r"\e").replace("-", r"\-"))


def man_page(tessera, all_commands):
    version = subprocess.run([tessera, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    lines = [f'.TH TESSERA 1 "" "{version}" "User Commands"', ".SH NAME",
             roff("tessera - multiply float32 matrices, and show how well"), ".SH SYNOPSIS"]
    for each in all_commands:
        lines += [roff(each.usage), ".br"]
    lines += [roff("tessera --version")]
    for each in all_commands:
        lines += [f".SH {each.name.upper()}", roff(each.usage), ".PP", ".nf", roff(each.description), ".fi"]
        for option in each.options:
            spelling = rf"\fB{roff(', '.join(option.spellings))}\fR {roff(option.value)}"
            lines += [".TP", spelling.rstrip(), roff(option.help)]
    lines += [".SH EXIT STATUS", *map(roff, re.findall(r"^exit codes: (.*)$", ask(tessera), re.M))]
    return "\n".join(lines) + "\n"


# ---- Completions ----------------------------------------------------------------------------------------------------

def bash(all_commands):
    names = " ".join(each.name for each in all_commands)
    lines = ["# bash completion for tessera; made by packaging/manual.py", "_tessera() {",
             "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} options=", "    COMPREPLY=()",
             "    if [ \"$COMP_CWORD\" = 1 ]; then",
             f"        COMPREPLY=($(compgen -W '{names} help --help --version' -- \"$word\"))",
             "        return", "    fi", "    case $before in",
             f"        help) COMPREPLY=($(compgen -W '{names}' -- \"$word\")); return ;;"]
    with_words = {option for each in all_commands for option in each.options if option.words}
    for option in sorted(with_words):
        lines += [f"        {'|'.join(option.spellings)})",
                  f"            COMPREPLY=($(compgen -W '{' '.join(option.words)}' -- \"$word\")); return ;;"]
    lines += ["    esac", "    case ${COMP_WORDS[1]} in"]
    for each in all_commands:
        spellings = " ".join(spelling for option in each.options for spelling in option.spellings)
        lines.append(f"        {each.name}) options='{spellings}' ;;")
    lines += ["    esac", "    case $word in -*) COMPREPLY=($(compgen -W \"$options\" -- \"$word\")) ;; esac", "}",
              "complete -o default -F _tessera tessera"]
    return "\n".join(lines) + "\n"


def zsh_value(option):
    if not option.value:
        return ""
    what = option.value.strip("[]")
    return f":{what}:" + (f"({' '.join(option.words)})" if option.words else "_files" if what == "FILE" else "")


def zsh_text(text):
    return re.sub(r"([\[\]:])", r"\\\1", text.replace("'", "'\\''"))


def zsh(all_commands):
    lines = ["#compdef tessera", "# made by packaging/manual.py", "local -a commands", "commands=("]
    lines += [f"    '{each.name}:{zsh_text(each.summary)}'" for each in all_commands]
    lines += [")", "if [[ CURRENT -eq 3 && $words[2] == help ]]; then", "    _describe command commands", "    return",
              "fi", "commands+=('help:explains a command')",
              "if (( CURRENT == 2 )); then", "    _describe command commands", "    return", "fi",
              "local name=$words[2]", "shift words; (( CURRENT-- ))", "case $name in"]
    for each in all_commands:
        lines.append(f"{each.name}) _arguments \\")
        for option in each.options:
            told = f"[{zsh_text(option.help)}]{zsh_value(option)}"
            lines += [f"    '{spelling}{told}' \\" for spelling in option.spellings]
        lines.append("    '*:file:_files' ;;")
    return "\n".join([*lines, "esac"]) + "\n"


def main():
    tessera, folder = sys.argv[1], Path(sys.argv[2])
    found = commands(tessera)
    (folder / "tessera.1").write_text(man_page(tessera, found))
    (folder / "tessera.bash").write_text(bash(found))
    (folder / "_tessera").write_text(zsh(found))


main()
