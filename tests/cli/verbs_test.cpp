// Every verb: help with an example, the same answer from any folder, silence where nobody looks.
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/base/file.h"
#include "tests/cli/run_command.h"
#include "tests/support/sanitized.h"

namespace foretrain {
namespace {

TEST(Verbs, HelpHasAnExample) {
  const Workplace place;
  for (const char* verb : {"", "simulate", "search", "calibrate", "execute", "validate", "score",
                           "list", "show", "doctor"}) {
    std::vector<std::string> arguments = {"--help"};
    if (*verb != '\0') arguments.insert(arguments.begin(), verb);
    const CommandResult result = place.run(arguments);
    EXPECT_EQ(result.exit_code, 0) << verb;
    EXPECT_EQ(result.err, "") << verb;
    const std::size_t example = result.out.find("Example");
    ASSERT_NE(example, std::string::npos) << verb;
    EXPECT_NE(result.out.find(std::string("foretrain ") + verb, example), std::string::npos);
  }
  EXPECT_EQ(place.run({"--version"}).exit_code, 0);
  EXPECT_NE(place.run({"--version"}).out, "");
}

TEST(Verbs, AWordThatIsNoneIsAnsweredInOneLine) {
  const Workplace place;
  const CommandResult near = place.run({"simualte", "run.json"});
  EXPECT_EQ(near.exit_code, 2);
  EXPECT_EQ(near.err,
            "foretrain: no verb \"simualte\"; did you mean \"simulate\"? "
            "(foretrain --help lists the verbs)\n");
  const CommandResult far = place.run({"zzzzzzzzzz"});
  EXPECT_EQ(far.exit_code, 2);
  EXPECT_NE(far.err.find("foretrain --help lists the verbs"), std::string::npos) << far.err;
}

// A RUN by hand, with remarks; through a pipe; compressed.
TEST(Verbs, ReadARunHoweverItComes) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  const std::string plain = place.run({"simulate", "run.json", "--json", "-"}).out;
  place.write("hand.json", "// by hand\n" + std::string(kSmallRun));
  ASSERT_TRUE(write_text_file(place.path("in/run.json.gz").string(), kSmallRun).ok());
  const std::string piped = "cd '" + place.path("in").string() + "' && cat run.json | " +
                            FORETRAIN_BINARY + " simulate - --json piped.json --quiet";
  ASSERT_EQ(std::system(piped.c_str()), 0);
  const auto step = [](const std::string& text) {
    return at(parse_json(text, "result").value(), "iteration_time_s");
  };
  EXPECT_EQ(step(place.read("piped.json")), step(plain));
  for (const char* run : {"hand.json", "run.json.gz"}) {
    const CommandResult result = place.run({"simulate", run, "--json", "-"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(step(result.out), step(plain)) << run;
  }
}

// Conditions that were asked for: 3 where they do not hold, after all results are written.
TEST(Verbs, ExitWithThreeWhereAConditionDoesNotHold) {
  const Workplace place;
  place.write("run.json", R"({"model": "llama-3-70b", "cluster": {"preset": "dgx-h100",
      "accelerators": 8}, "batch": {"global": 8, "micro": 1, "sequence": 512}})");
  EXPECT_EQ(place.run({"simulate", "run.json", "--no-advice"}).exit_code, 0);
  const CommandResult fit =
      place.run({"simulate", "run.json", "--no-advice", "--require-fit", "--json", "r.json"});
  EXPECT_EQ(fit.exit_code, 3);
  EXPECT_NE(fit.err.find("% likely to fit"), std::string::npos) << fit.err;
  EXPECT_NE(place.read("r.json"), "");
  const CommandResult slow =
      place.run({"simulate", "run.json", "--no-advice", "--max-step-s", "0.01"});
  EXPECT_EQ(slow.exit_code, 3);
  EXPECT_NE(slow.err.find("more than --max-step-s 10"), std::string::npos) << slow.err;
  EXPECT_EQ(place.run({"simulate", "run.json", "--no-advice", "--max-step-s", "1e6"}).exit_code, 0);
  EXPECT_EQ(place.run({"simulate", "run.json", "--max-step-s", "0"}).exit_code, 2);
}

TEST(Verbs, StartAtOnce) {
  const Workplace place;
  const std::vector<std::vector<std::string>> commands = {
      {"--help"}, {"list"}, {"simulate", "--help"}};
  for (const std::vector<std::string>& arguments : commands) {
    double best = 1e9;  // of five: others may keep the caches busy
    for (int i = 0; i < 5; ++i) best = std::min(best, place.run(arguments).cpu_s);
    RecordProperty(arguments.front(), std::to_string(best));
    EXPECT_LT(best, kSanitized ? 2 : 0.1) << arguments.front();
  }
}

TEST(Verbs, ListAndDoctorAnswerInJsonToo) {
  const Workplace place;
  for (const char* verb : {"list", "doctor"}) {
    const CommandResult text = place.run({verb});
    EXPECT_EQ(text.exit_code, 0) << text.err;
    EXPECT_NE(text.out, "");
    const CommandResult json = place.run({verb, "--json", "-"});
    EXPECT_EQ(json.exit_code, 0) << json.err;
    EXPECT_TRUE(parse_json(json.out, "stdout").ok()) << json.out;
    EXPECT_EQ(text.err + json.err, "");
  }
}

TEST(Verbs, ListTellsSizesAndTakesWords) {
  const Workplace place;
  EXPECT_NE(
      place.run({"list", "models", "llama-3.1-405b"}).out.find("405.9 B  llama, Llama-3.1-405B"),
      std::string::npos);
  const std::string both = place.run({"list", "clusters,devices", "H100", "8"}).out;
  EXPECT_NE(both.find("dgx-h100"), std::string::npos) << both;
  EXPECT_NE(both.find("80 GiB  989 TFLOP/s"), std::string::npos) << both;
  EXPECT_EQ(both.find("a100"), std::string::npos) << both;
  const Json json =
      parse_json(place.run({"list", "models", "mixtral", "--json", "-"}).out, "").value();
  ASSERT_EQ(at(json, "models").array()->size(), at(json, "about/models").object()->size());
  EXPECT_EQ(at(json, "about/models/mixtral-8x7b/size"), Json("46.7 B"));
  const CommandResult none = place.run({"list", "all", "no such words"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_NE(none.err.find("nothing that ships has \"no such words\""), std::string::npos)
      << none.err;
}

TEST(Verbs, ShowChangedPrintsWhatTheSystemWouldNotDo) {
  const Workplace place;
  place.write("run.json", R"({"model": "gpt3-125m", "cluster": {"preset": "dgx-h100",
      "accelerators": 8}, "system": "megatron-lm", "parallel": {"tensor": 2, "pipeline": 1},
      "batch": {"global": 32, "micro": 1}})");
  const std::string out =
      place.run({"show", "run.json", "--changed", "--set", "recompute=full"}).out;
  EXPECT_NE(out.find("parallel.tensor                          2   (RUN; usual 1)"),
            std::string::npos)
      << out;
  EXPECT_NE(out.find("recompute                                \"full\"   (--set; usual \"none\")"),
            std::string::npos)
      << out;
  EXPECT_NE(out.find("\"gpt3-125m\"   (RUN)"), std::string::npos) << out;
  for (const char* usual : {"pipeline", "micro", "sharding", "overlap"}) {
    EXPECT_EQ(out.find(usual), std::string::npos) << usual << "\n" << out;
  }
  // What it prints is the RUN again.
  const CommandResult json = place.run({"show", "run.json", "--changed", "--json", "-", "--quiet"});
  place.write("again.json", dump_json(at(parse_json(json.out, "").value(), "run")));
  const std::vector<std::string> apart = {"simulation", "name"};
  EXPECT_EQ(dump_json(without(simulated(place, "again.json", {}), apart)),
            dump_json(without(simulated(place, "run.json", {}), apart)));
  EXPECT_EQ(place.run({"show", "dgx-h100", "--changed"}).exit_code, 1);
}

TEST(Verbs, ShowPrintsTheLinksOfAMeshWithTheirSource) {
  const Workplace place;
  const std::string shown = place.run({"show", "dgx-1v"}).out;
  const std::size_t at = shown.find("\nmesh_links");
  ASSERT_NE(at, std::string::npos) << shown;
  const std::string line = shown.substr(at + 1, shown.find('\n', at + 1) - at - 1);
  EXPECT_NE(line.find("[[0,1,1,2,2,0,0,0],"), std::string::npos) << line;
  EXPECT_NE(line.find("(nvidia-smi topo -m"), std::string::npos) << line;
}

// Of the cluster's own file, its device's and its fabric's.
TEST(Verbs, ShowSaysWhenFiguresWereLastChanged) {
  const Workplace place;
  const std::string shown = place.run({"show", "dgx-1v"}).out;
  for (const char* line :
       {"\nfigures_changed ", "\ndevice.figures_changed ", "\nnetwork.topology.figures_changed "}) {
    const std::size_t at = shown.find(line);
    ASSERT_NE(at, std::string::npos) << line << shown;
    EXPECT_NE(shown.substr(at, 60).find("\"20"), std::string::npos) << shown.substr(at, 60);
  }
  EXPECT_NE(place.run({"show", "h100-sxm-80gb"}).out.find("figures_changed"), std::string::npos);
  EXPECT_NE(place.run({"show", "rail-fat-tree"}).out.find("figures_changed"), std::string::npos);
}

TEST(Verbs, EveryPresetCanBeShown) {
  const Workplace place;
  for (const char* kind : {"models", "clusters", "devices", "fabrics", "systems", "runs"}) {
    const CommandResult list = place.run({"list", kind, "--json", "-"});
    const Result<Json> json = parse_json(list.out, "stdout");
    ASSERT_TRUE(json.ok()) << kind;
    const Json names = at(json.value(), kind);
    ASSERT_TRUE(names.array() != nullptr && !names.array()->empty()) << kind;
    std::size_t at_name = 0;
    for (const Json& name : *names.array()) {
      if (at_name++ % static_cast<std::size_t>(cases(1, 8)) != 0) continue;
      const CommandResult shown = place.run({"show", *name.string()});
      EXPECT_EQ(shown.exit_code, 0) << *name.string() << ": " << shown.err;
      EXPECT_NE(shown.out, "") << *name.string();
    }
  }
}

// A part in a file of the user's own, by its schema or by what it has: with the origin of its
// fields.
TEST(Verbs, AFileOfAPartCanBeShown) {
  const Workplace place;
  struct Part {
    const char* preset;
    const char* field;
  };
  for (const Part& part :
       {Part{"h100-sxm-80gb", "sm_count"}, Part{"aws-p5", "network.nics_per_node"},
        Part{"rail-fat-tree", "kind"}, Part{"gpt2", "hidden_size"}}) {
    const CommandResult preset = place.run({"show", part.preset});
    ASSERT_EQ(preset.exit_code, 0) << preset.err;
    const char* kinds[] = {"devices", "clusters", "fabrics", "models"};
    for (const char* kind : kinds) {
      const std::string path = std::string("configs/") + kind + "/" + part.preset + ".json";
      const Result<std::string> text = read_text_file(FORETRAIN_SOURCE_DIR "/" + path);
      if (!text.ok()) continue;
      for (const bool schema : {true, false}) {
        Json json = parse_json(text.value(), path).value();
        if (!schema) json.erase("schema");
        place.write("mine.json", dump_json(json));
        const CommandResult shown = place.run({"show", "mine.json"});
        EXPECT_EQ(shown.exit_code, 0) << shown.err;
        EXPECT_EQ(shown.out, preset.out) << path;
        EXPECT_NE(shown.out.find(part.field), std::string::npos) << path;
      }
    }
  }
}

// What builds on a preset is of its kind; a schema that is none says so.
TEST(Verbs, AFileThatBuildsOnAPartCanBeShown) {
  const Workplace place;
  place.write("mine.json", R"({"preset": "dgx-h100", "accelerators": 16})");
  const CommandResult cluster = place.run({"show", "mine.json"});
  EXPECT_EQ(cluster.exit_code, 0) << cluster.err;
  EXPECT_NE(cluster.out.find("nic_gbit_per_s"), std::string::npos);
  place.write("mine.json", R"({"preset": "h100-sxm-80gb", "memory_gib": 96})");
  const CommandResult device = place.run({"show", "mine.json"});
  EXPECT_EQ(device.exit_code, 0) << device.err;
  EXPECT_NE(device.out.find("96"), std::string::npos) << device.out;
  place.write("loop.json", R"({"preset": "loop.json", "architecture": "hopper"})");
  const CommandResult loop = place.run({"show", "loop.json"});
  EXPECT_EQ(loop.exit_code, 1);
  EXPECT_NE(loop.err.find("build on each other"), std::string::npos) << loop.err;
  place.write("mine.json", R"({"schema": "foretrain/device/2", "architecture": "hopper"})");
  const CommandResult other = place.run({"show", "mine.json"});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_NE(other.err.find("/schema: found \"foretrain/device/2\""), std::string::npos)
      << other.err;
}

TEST(Verbs, ShowProgramIsStable) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  const CommandResult first = place.run({"show", "run.json", "--program", "0"});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_NE(first.out.find("mlp"), std::string::npos);
  EXPECT_EQ(first.out, place.run({"show", "run.json", "--program", "0"}).out);
}

// What zb-v and chimera make for the run's own durations, and the two ways of DualPipe.
TEST(Verbs, ShowWritesAScheduleThatSimulatesAlike) {
  const Workplace place;
  place.write("run.json", R"({"model": "gpt3-125m", "cluster": {"preset": "dgx-h100",
      "accelerators": 8}, "parallel": {"pipeline": 4},
      "batch": {"global": 32, "micro": 1, "sequence": 2048}})");
  for (const char* name : {"zb-v", "dualpipev", "dualpipe", "chimera"}) {
    const std::vector<std::string> sets = {"model.tie_word_embeddings=false",
                                           std::string("schedule=") + name};
    const CommandResult order = place.run(with_sets({"show", "run.json", "--schedule"}, sets));
    ASSERT_EQ(order.exit_code, 0) << order.err;
    place.write("order.json", order.out);
    const std::vector<std::string> own = {sets[0], "schedule=order.json"};
    EXPECT_EQ(at(simulated(place, "run.json", own), "iteration_time_s").number(),
              at(simulated(place, "run.json", sets), "iteration_time_s").number())
        << name;
  }
  const CommandResult other =
      place.run(with_sets({"show", "run.json", "--schedule"}, {"schedule=1f1b-interlaced"}));
  expect_refused(place, other, {"those of 1f1b-interlaced are more"}, {"order.json", "run.json"});
}

TEST(Verbs, ShowSaysWhatIsNoRun) {
  const Workplace place;
  for (const char* part : {"dgx-h100", "llama-3-8b", "deepspeed"}) {
    const CommandResult result = place.run({"show", part, "--set", "batch.micro=1"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.err.find(std::string(part) + " is no RUN"), std::string::npos) << result.err;
  }
  place.write("config.json", R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})");
  const CommandResult model = place.run({"simulate", "config.json"});
  EXPECT_EQ(model.exit_code, 1);
  EXPECT_NE(model.err.find("this is a model; a RUN names it beside a cluster"), std::string::npos)
      << model.err;
}

TEST(Verbs, ShowSaysWhatFollows) {
  const Workplace place;
  place.write("run.json", R"({"model": "mixtral-8x7b", "cluster": {"preset": "dgx-h100",
      "accelerators": 16}, "parallel": {"expert": 8, "context": 2, "pipeline": 2},
      "batch": {"global": 8, "micro": 1, "sequence": 4096}})");
  const CommandResult shown = place.run({"show", "run.json"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  for (const char* part : {"pipeline 2 by 1f1b", "context 2 by ring", "dropout of the residual",
                           "experts by alltoall, routing natural, the busiest rank's tokens 1."}) {
    EXPECT_NE(shown.out.find(part), std::string::npos) << shown.out;
  }
}

TEST(Verbs, ShowWhyOffersTheNearestName) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  const CommandResult hit = place.run({"show", "run.json", "--why", "mlp.up"});
  EXPECT_EQ(hit.exit_code, 0) << hit.err;
  EXPECT_NE(hit.out, "");
  const CommandResult miss = place.run({"show", "run.json", "--why", "mlp.upp"});
  EXPECT_EQ(miss.exit_code, 1);
  EXPECT_NE(miss.err.find("did you mean \"mlp.up\""), std::string::npos) << miss.err;
  const CommandResult word = place.run({"show", "run.json", "--why", "mlp"});
  EXPECT_EQ(word.exit_code, 1);
  EXPECT_NE(word.err.find("of like name: "), std::string::npos) << word.err;
  EXPECT_NE(word.err.find("mlp.down"), std::string::npos) << word.err;
}

TEST(Verbs, APathWinsOverAName) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  place.write("gpt3-125m", R"({"name": "mine", "model_type": "gpt2", "n_layer": 4, "n_embd": 768,
                               "n_head": 12, "n_positions": 2048, "vocab_size": 50304})");
  const CommandResult result = place.run({"simulate", "run.json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("mine"), std::string::npos) << result.out;
}

TEST(Verbs, ARunMayStandOnTheCommandLine) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  const std::vector<std::string> apart = {"simulation", "name"};
  const Json of_file = without(simulated(place, "run.json", {}), apart);
  const Json of_text = without(simulated(place, std::string(" ") + kSmallRun, {}), apart);
  EXPECT_EQ(dump_json(of_file), dump_json(of_text));
  const CommandResult wrong = place.run({"simulate", R"({"modle": "gpt3-125m"})"});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_NE(wrong.err.find("RUN: /modle: unknown key"), std::string::npos) << wrong.err;
  place.write("{odd}", kSmallRun);
  EXPECT_EQ(place.run({"simulate", "{odd}"}).exit_code, 0);
}

TEST(Verbs, PipedOutputHoldsTheResultAlone) {
  const Workplace place;
  place.write("run.json", kSmallRun);
  const CommandResult quiet =
      place.run({"simulate", "run.json", "--quiet", "--json", "out.json", "--trace", "t.json"});
  EXPECT_EQ(quiet.exit_code, 0);
  EXPECT_EQ(quiet.out + quiet.err, "");
  EXPECT_TRUE(parse_json(place.read("out.json"), "out.json").ok());
  EXPECT_TRUE(parse_json(place.read("t.json"), "t.json").ok());
  const CommandResult loud = place.run({"simulate", "run.json"});
  EXPECT_NE(loud.out, "");
  EXPECT_EQ(loud.err, "");
  EXPECT_EQ(place.files(), (std::vector<std::string>{"out.json", "run.json", "t.json"}));
}

// What scripts rely on: every verb writes a result as JSON, and is silent where it is asked to be.
TEST(Verbs, AllHaveJsonAndQuiet) {
  const Workplace place;
  const CommandResult run = place.run({"completion", "bash", "--json", "-"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json all = parse_json(run.out, "stdout").value();
  std::size_t verbs = 0;
  for (const Json& verb : *all.find("verbs")->array()) {
    const std::string& name = *verb.find("name")->string();
    ++verbs;
    for (const char* wanted : {"--json", "--quiet"}) {
      bool has = name == "completion";  // is not among those that it offers to itself
      for (const Json& option : *verb.find("options")->array()) {
        has = has || *option.find("name") == Json(wanted);
      }
      EXPECT_TRUE(has) << name << " " << wanted;
    }
  }
  EXPECT_GE(verbs, 13U);
}

TEST(Verbs, SchemaAndCompletionWriteJsonAndAreSilent) {
  const Workplace place;
  const CommandResult schema = place.run({"schema", "run", "--json", "s.json", "--quiet"});
  EXPECT_EQ(schema.exit_code, 0) << schema.err;
  EXPECT_EQ(schema.out, "");
  EXPECT_EQ(place.read("s.json"), place.run({"schema", "run"}).out);
  EXPECT_EQ(place.run({"schema", "run", "--json", "-"}).out, place.read("s.json"));
  EXPECT_EQ(place.run({"schema", "run", "--page", "--json", "-"}).exit_code, 2);
  const CommandResult fish = place.run({"completion", "fish", "--json", "c.json", "--quiet"});
  EXPECT_EQ(fish.exit_code, 0) << fish.err;
  EXPECT_EQ(fish.out, "");
  const Json table = parse_json(place.read("c.json"), "c.json").value();
  EXPECT_EQ(*table.find("schema"), Json("foretrain/command-line/1"));
}

}  // namespace
}  // namespace foretrain
