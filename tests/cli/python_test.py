"""import foretrain: the same answers as the command's, errors, threads, Ctrl-C, and the how-to page.

python_test.py FORETRAIN SOURCE_FOLDER, with the module's folder in PYTHONPATH.
"""

import json
import os
import pathlib
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings

import foretrain

COMMAND, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
DATA = SOURCE / "tests" / "data"
SMALL = {"model": "gpt3-125m", "cluster": {"preset": "dgx-h100", "accelerators": 8},
         "batch": {"global": 16, "micro": 1, "sequence": 1024}}
CAMPAIGN = {"tokens": 3e11, "reliability": "meta-rsc-1", "campaigns": 40}


def command(*words):
    """Exit code, JSON and messages of the command."""
    done = subprocess.run([COMMAND, *words, "--quiet", "--json", "out.json"], capture_output=True,
                          text=True)
    path = pathlib.Path("out.json")
    result = json.loads(path.read_text()) if path.exists() else None
    path.unlink(missing_ok=True)
    lines = [line.removeprefix("foretrain: ") for line in done.stderr.splitlines()]
    return done.returncode, result, lines


def untimed(value):
    """Without what no two calls have alike: how long they took."""
    if isinstance(value, dict):
        return {key: untimed(item) for key, item in value.items() if key != "wall_s"}
    return [untimed(item) for item in value] if isinstance(value, list) else value


def interrupt_after(seconds):
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.mkdtemp()
        before = os.getcwd()
        os.chdir(folder)
        self.addCleanup(shutil.rmtree, folder)
        self.addCleanup(os.chdir, before)
        warnings.simplefilter("ignore", foretrain.IdleKeyWarning)
        pathlib.Path("run.json").write_text(json.dumps(SMALL))

    def same(self, mine, *words):
        code, theirs, lines = command(*words)
        self.assertEqual(code, 0, lines)
        self.assertEqual(json.dumps(untimed(mine)), json.dumps(untimed(theirs)))


class Answers(InAFolder):
    def test_simulate(self):
        self.same(foretrain.simulate("llama-3-8b-8-h100"), "simulate", "llama-3-8b-8-h100")
        self.same(foretrain.simulate("run.json"), "simulate", "run.json")
        self.same(foretrain.simulate(pathlib.Path("run.json"), advice=False), "simulate", "run.json",
                  "--no-advice")
        mine = foretrain.simulate("run.json", parallel__tensor=2, sets={"recompute": "full"})
        self.same(mine, "simulate", "run.json", "--set", "parallel.tensor=2", "--set",
                  "recompute=full")

    def test_a_dict_is_the_file(self):
        of_file = untimed(foretrain.simulate("run.json", name="one"))
        of_dict = untimed(foretrain.simulate(SMALL, name="one"))
        del of_file["simulation"]["config_hash"], of_dict["simulation"]["config_hash"]
        self.assertEqual(of_file, of_dict)
        with self.subTest("on the command line too"):
            code, theirs, lines = command("simulate", json.dumps(SMALL), "--set", "name=one")
            self.assertEqual(code, 0, lines)
            self.same(foretrain.simulate(SMALL, name="one"), "simulate", json.dumps(SMALL), "--set",
                      "name=one")

    def test_search(self):
        mine = foretrain.search(SMALL, over="parallel", objective="time", out="best.json")
        self.assertTrue(mine["certificate"]["complete"])
        self.same(mine, "search", json.dumps(SMALL), "--over", "parallel", "--objective", "time")
        best = foretrain.simulate("best.json")
        self.assertEqual(best["iteration_time_s"], mine["best"]["iteration_time_s"])

    def test_goodput(self):
        mine = foretrain.goodput(SMALL, campaign=CAMPAIGN, seed=7)
        self.same(mine, "goodput", "run.json", "--set", "campaign=" + json.dumps(CAMPAIGN), "--seed",
                  "7")
        both = foretrain.goodput("run.json", campaign=CAMPAIGN, clusters=["dgx-h100", "dgx-h200"],
                                 advice=False)
        self.same(both, "goodput", "run.json", "--set", "campaign=" + json.dumps(CAMPAIGN),
                  "--clusters", "dgx-h100,dgx-h200", "--no-advice")

    def test_compare(self):
        self.same(foretrain.compare("run.json", "llama-3-8b-8-h100"), "compare", "run.json",
                  "llama-3-8b-8-h100")
        result = foretrain.simulate("run.json")
        mine = foretrain.compare(result, SMALL)
        self.assertEqual(mine["a"]["step_s"], mine["b"]["step_s"])
        pathlib.Path("result.json").write_text(json.dumps(result))
        theirs = command("compare", "result.json", "run.json")[1]
        self.assertEqual(mine["families"], theirs["families"])

    def test_import_and_export(self):
        script = str(DATA / "import" / "gpt3_175b.sh")
        mine = foretrain.import_run(script, cluster="dgx-h100", accelerators=1024)
        self.same(mine, "import", script, "--cluster", "dgx-h100", "--accelerators", "1024")
        self.assertIn("iteration_time_s", foretrain.simulate(mine["run"], advice=False))
        written = foretrain.export_run(mine["run"], "megatron-lm")
        pathlib.Path("imported.json").write_text(json.dumps(mine["run"]))
        self.same(written, "export", "imported.json", "--to", "megatron-lm")
        pathlib.Path("again.sh").write_text(written["files"][0]["text"])
        again = foretrain.import_run(["again.sh"], from_="megatron-lm", cluster="dgx-h100",
                                     accelerators=1024)
        self.assertEqual(again["run"]["parallel"], mine["run"]["parallel"])

    def test_files_are_written(self):
        foretrain.simulate("run.json", trace="t.json", timeline="l.json.gz", report="p.html")
        self.assertIn("traceEvents", json.loads(pathlib.Path("t.json").read_text()))
        self.assertTrue(pathlib.Path("p.html").read_text().lower().startswith("<!doctype html"))
        self.assertGreater(foretrain.compare("l.json.gz")["a"]["step_s"], 0)

    def test_nothing_is_printed(self):
        code = "import foretrain; foretrain.simulate('run.json')"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))


class Errors(InAFolder):
    def raised(self, kind, call):
        with self.assertRaises(kind) as caught:
            call()
        return caught.exception

    def test_messages_are_the_commands(self):
        error = self.raised(foretrain.InputError, lambda: foretrain.simulate(
            "run.json", parallel__tensro=2, sets={"batch.globl": 3}))
        code, _, lines = command("simulate", "run.json", "--set", "batch.globl=3", "--set",
                                 "parallel.tensro=2")
        self.assertEqual(code, 1)
        self.assertEqual(sorted(error.messages), sorted(lines))
        self.assertEqual(len(error.messages), 2)
        self.assertEqual(str(error), "\n".join(error.messages))
        self.assertIsInstance(error, ValueError)

    def test_a_name_that_is_none(self):
        error = self.raised(foretrain.InputError, lambda: foretrain.simulate("lama-3-8b-8-h100"))
        self.assertEqual(error.messages, command("simulate", "lama-3-8b-8-h100")[2])

    def test_what_is_not_modelled(self):
        words = ["--set", "cluster.preset=dgx-a100-80gb", "--set", "precision=fp8"]
        error = self.raised(foretrain.UnsupportedError, lambda: foretrain.simulate(
            "run.json", cluster__preset="dgx-a100-80gb", precision="fp8"))
        self.assertEqual(error.messages, command("simulate", "run.json", *words)[2])

    def test_a_dict_is_named_run(self):
        error = self.raised(foretrain.InputError,
                            lambda: foretrain.simulate({**SMALL, "batch": {"global": -1}}))
        self.assertTrue(error.messages[0].startswith("RUN: /batch/global: "), error.messages)

    def test_conditions(self):
        error = self.raised(foretrain.ConditionError,
                            lambda: foretrain.simulate("run.json", max_step_s=1e-6))
        code, result, lines = command("simulate", "run.json", "--max-step-s", "1e-6")
        self.assertEqual((code, error.messages), (3, lines))
        self.assertEqual(untimed(error.result), untimed(result))
        error = self.raised(foretrain.ConditionError, lambda: foretrain.search(
            {**SMALL, "model": "gpt3-175b"}, over="recompute"))
        self.assertIsNone(error.result["best"])
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((again.messages, again.result), (error.messages, error.result))

    def test_options_are_checked(self):
        with self.assertRaises(foretrain.InputError):
            foretrain.simulate("run.json", require_fit=2)
        with self.assertRaises(foretrain.InputError):
            foretrain.goodput("run.json", campaigns=-1)
        with self.assertRaises(foretrain.InputError):
            foretrain.search("run.json", objective="fame")
        with self.assertRaises(foretrain.InputError):
            foretrain.simulate("run.json", batch__global=float("nan"))
        with self.assertRaises(TypeError):
            foretrain.simulate(["run.json"])
        with self.assertRaises(TypeError):
            foretrain.simulate({**SMALL, "name": object()})

    def test_idle_keys_are_warnings(self):
        command_line = [COMMAND, "simulate", "run.json", "--set", "overlap.pipeline=true"]
        code = subprocess.run(command_line, capture_output=True, text=True)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            foretrain.simulate("run.json", overlap__pipeline=True)
        self.assertEqual(len(seen), 1)
        texts = ["foretrain: warning: " + str(one.message) for one in seen]
        self.assertEqual(texts, code.stderr.splitlines())
        self.assertTrue(all(one.category is foretrain.IdleKeyWarning for one in seen))
        self.assertEqual(pathlib.Path(seen[0].filename).name, "python_test.py")


class Together(InAFolder):
    def test_threads_answer_as_one_does(self):
        cases = [(verb, tensor) for verb in ("simulate", "goodput", "compare", "search")
                 for tensor in (1, 2, 4)]

        def answer(case):
            verb, tensor = case
            more = {"goodput": {"campaign": CAMPAIGN}, "search": {"over": "recompute"}}.get(verb, {})
            return json.dumps(untimed(getattr(foretrain, verb)(SMALL, parallel__tensor=tensor,
                                                               **more)))

        alone = [answer(case) for case in cases]
        beside = [None] * len(cases)

        def work(i):
            beside[i] = answer(cases[i])

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(cases))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(alone, beside)

    def test_others_run_meanwhile(self):
        counted = [0]
        done = threading.Event()

        def count():
            while not done.is_set():
                counted[0] += 1
                time.sleep(0.001)

        thread = threading.Thread(target=count)
        thread.start()
        before = counted[0]
        foretrain.goodput(SMALL, campaign={**CAMPAIGN, "campaigns": 500000}, advice=False)
        seen = counted[0] - before
        done.set()
        thread.join()
        self.assertGreater(seen, 10)

    def test_ctrl_c_ends_a_simulation(self):
        self.interrupted(lambda: foretrain.simulate("llama-3.1-405b-16384-h100", full=True,
                                                    batch__global=8192))

    def test_ctrl_c_ends_a_search(self):
        run = {"model": "llama-3-70b", "cluster": {"preset": "dgx-h100", "accelerators": 256},
               "batch": {"global": 256, "sequence": 8192}}
        self.interrupted(lambda: foretrain.search(run, budget=100))

    def test_ctrl_c_ends_campaigns(self):
        self.interrupted(lambda: foretrain.goodput(
            "llama-3.1-405b-16384-h100", campaign__tokens=2e12, campaigns=10_000_000,
            campaign__reliability="llama-3-405b"))

    def interrupted(self, call):
        interrupt_after(0.3)
        begin = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            call()
        self.assertLess(time.monotonic() - begin, 30)
        self.assertGreater(foretrain.simulate(SMALL)["iteration_time_s"], 0)


class Page(InAFolder):
    def test_the_how_to_page_runs(self):
        text = (SOURCE / "docs" / "how-to" / "python.md").read_text()
        shutil.copy(DATA / "import" / "gpt3_175b.sh", "train.sh")
        blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
        self.assertGreater(len(blocks), 5)
        names = {}
        for block in blocks:
            exec(compile(block, "python.md", "exec"), names)

    def test_signatures_are_those_of_the_stubs(self):
        import ast
        import inspect
        stubs = ast.parse(pathlib.Path(foretrain.__file__).with_suffix(".pyi").read_text())
        seen = set()
        for node in stubs.body:
            if not isinstance(node, ast.FunctionDef):
                continue
            names = [one.arg for one in node.args.args + node.args.kwonlyargs] + [node.args.kwarg.arg]
            self.assertEqual(names, list(inspect.signature(getattr(foretrain, node.name)).parameters))
            seen.add(node.name)
        public = {name for name in foretrain.__all__ if name.islower()}
        self.assertEqual(seen, public)
        self.assertTrue(all(getattr(foretrain, name).__doc__ for name in foretrain.__all__))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
