"""Runs every command of docs/tutorial/ten-tasks.md and checks what the page shows of the output.

tutorial_test.py FORETRAIN SOURCE_FOLDER [PYTHON_FOLDER]; without the last the Python module is not there, and its
task is left out.

Words must be as shown, numbers within a tenth. "..." in a line stands for anything, a line of it for any lines.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

COMMAND, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
MODULE = sys.argv[3] if len(sys.argv) > 3 else ""
PAGE = SOURCE / "docs" / "tutorial" / "ten-tasks.md"
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?")
TOLERANCE = 0.1


def same_line(shown, printed):
    """Whether a printed line is the shown one: numbers nearly, bars and spaces any."""
    shown, printed = (" ".join(line.replace("█", "").split()) for line in (shown, printed))
    pattern, numbers = "", []
    for part in re.split(r"(\.\.\.)", shown):
        if part == "...":
            pattern += ".*?"
            continue
        last = 0
        for match in NUMBER.finditer(part):
            pattern += re.escape(part[last:match.start()]) + r"([-+]?\d[\d,]*(?:\.\d+)?)"
            numbers.append(float(match.group().replace(",", "")))
            last = match.end()
        pattern += re.escape(part[last:])
    found = re.fullmatch(pattern, printed)
    if found is None:
        return False
    seen = [float(text.replace(",", "")) for text in found.groups()]
    return all(abs(a - b) <= TOLERANCE * max(abs(a), abs(b)) for a, b in zip(numbers, seen))


def missing(shown, printed):
    """The first shown line that is not where it should be; None: all are."""
    at, free = 0, False
    for line in shown:
        if line.strip() == "...":
            free = True
            continue
        while free and at < len(printed) and not same_line(line, printed[at]):
            at += 1
        if at == len(printed) or not same_line(line, printed[at]):
            return line
        at, free = at + 1, False
    return None if free or at == len(printed) else f"nothing before: {printed[at]}"


def blocks():
    """(kind, text, name of the file that the text before or behind it gives)."""
    text = PAGE.read_text()
    for match in re.finditer(r"^```(\w+)\n(.*?)^```", text, re.M | re.S):
        before = re.findall(r"Save this as\s+`([\w.]+)`:\s*$", text[:match.start()])
        behind = re.match(r"\s*Saved as `([\w.]+)`:", text[match.end():])
        yield match.group(1), match.group(2), before[0] if before else behind and behind.group(1)


class Matching(unittest.TestCase):
    def test_lines(self):
        self.assertTrue(same_line("Step  3.31 s ██", "Step   3.20 s █████"))
        self.assertTrue(same_line("gemm ...", "  gemm   2.4 s   3.0 s"))
        self.assertFalse(same_line("Step  3.31 s", "Step  3.9 s"))
        self.assertFalse(same_line("Step  3.31 s", "Steps 3.31 s"))
        self.assertIsNone(missing(["a", "...", "c"], ["a", "b", "b", "c"]))
        self.assertEqual(missing(["a", "c"], ["a", "b", "c"]), "c")
        self.assertEqual(missing(["a", "...", "d"], ["a", "b", "c"]), "d")
        self.assertIsNotNone(missing(["a"], ["a", "b"]))


class Tutorial(unittest.TestCase):
    def test_every_command(self):
        folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        python = folder / "bin" / "python3"
        python.parent.mkdir()
        python.symlink_to(sys.executable)
        environment = {**os.environ, "FORETRAIN": str(SOURCE), "PYTHONPATH": MODULE,
                       "XDG_DATA_HOME": str(folder / "data"),
                       "PATH": f"{COMMAND.parent}:{python.parent}:{os.environ['PATH']}"}
        commands = 0
        for kind, text, name in blocks():
            if kind in ("json", "python"):
                self.assertTrue(name, "a file without a name: " + text)
                (folder / name).write_text(text)
                continue
            self.assertEqual(kind, "console")
            for command, shown in re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", text, re.M):
                if command.startswith("python3") and not MODULE:
                    continue
                done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                with self.subTest(command=command):
                    self.assertEqual(done.returncode, 0, done.stdout)
                    line = missing(shown.splitlines(), done.stdout.splitlines())
                    self.assertIsNone(line, "\nthe page shows, and the command does not print there: "
                                      f"{line}\n{done.stdout}")
                commands += 1
        self.assertGreater(commands, 14)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
