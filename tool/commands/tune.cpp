// SPDX-License-Identifier: Apache-2.0
// `attune tune`: turns records into the rules that the planner follows. It measures nothing, except with --watch: the
// same records and the same previous file give the same file anywhere.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>

#include "machine/files.h"
#include "plan/plan.h"
#include "plan/tuned.h"
#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/files.h"
#include "tool/json.h"
#include "tool/record/read.h"
#include "tool/text.h"
#include "tool/tune/between.h"
#include "tool/tune/check.h"
#include "tool/tune/file.h"
#include "tool/tune/watch.h"
#include "tool/tune/yaml_edit.h"

namespace attune {
namespace {

namespace fs = std::filesystem;

struct Asked {
  std::vector<std::string> files{};
  std::string out{}, yaml{}, check{}, watch{};
  std::vector<std::string> between{}, yaml_keys{};
  double margin_percent = 20, hysteresis_percent = 5, bar_percent = 98;
  bool project = false, fresh = false, dry_run = false, once = false;
  GatherSettings gathering{};
  TuneSettings settings() const { return {margin_percent / 100, hysteresis_percent / 100}; }
};

// Path of a device's file: --out or --project, else ATTUNE_TUNED, else the user's configuration. The planner may find
// another file first: see Done::is_read.
Status target(const Asked& asked, const std::string& device, size_t devices, std::string& out) {
  const std::string file = file_word(Device{.name = device}) + ".tsv";
  const char* const variable = std::getenv("ATTUNE_TUNED");
  const std::string named = !asked.out.empty() ? asked.out : !asked.project && variable ? variable : "";
  if (!named.empty()) {
    std::error_code error;
    const bool is_file = named.ends_with(".tsv") || fs::is_regular_file(named, error);
    if (is_file && devices > 1)
      return Status::no(named, " is one file, but the records come from ", devices, " devices; give a folder");
    out = is_file ? named : named + "/" + file;
    return Status::good();
  }
  const std::string folder = asked.project ? kProjectTunedFolder : user_tuned_folder();
  if (folder.empty())
    return Status::no("neither XDG_CONFIG_HOME nor HOME is set; give a file or a folder with --out");
  out = folder + "/" + file;
  return Status::good();
}

struct Done {
  std::string device{}, path{};
  std::string planner_reads{};  // the file that the planner finds from this folder; "": none
  bool changed = false, is_read = true;  // is_read: the planner reads `path`, or `path` does not exist
  TunedFile file{};
  std::vector<CheckedChoice> checked{}, own{};  // rows of --check; rows that the rules were made from
  int right() const {
    return int(std::count_if(checked.begin(), checked.end(), [](const CheckedChoice& c) { return c.right(); }));
  }
};

// Tunes one device. `code` is the exit code of a failure.
Status tune_device(const Asked& asked, const DeviceCurves& curves, size_t devices, Done& done, Exit& code) {
  done.device = curves.device;
  if (Status s = target(asked, curves.device, devices, done.path); !s.ok()) return s;
  FolderLock lock;  // until the file is replaced: another tune would lose these rules, or these would lose its
  if (!asked.dry_run) {
    std::error_code error;
    const fs::path folder = fs::path(done.path).parent_path();
    if (!folder.empty()) fs::create_directories(folder, error);
    if (Status s = lock.take(folder); !s.ok()) return code = kMachine, s.after(folder.string(), ": ");
  }
  std::string old_text;
  if (Status s = read_whole(done.path, old_text); !s.ok()) return s;
  TunedFile before;
  if (!asked.fresh && !old_text.empty()) {
    if (Status s = from_text(old_text, done.path, before); !s.ok())
      return Status::failure(s.code, s.message, "; --fresh replaces the file");
    if (before.device != curves.device)
      return Status::no(done.path, ": measured on '", before.device, "', but the records come from '", curves.device,
                        "'");
  }
  done.file = tune(curves, before.rules(), asked.settings());
  keep(before, done.file);
  const std::string text = to_text(done.file);
  done.changed = text != old_text;
  Tuned again;  // the planner must be able to read what is written
  if (Status s = read_tuned(text, done.path, again); !s.ok()) return s;
  if (!asked.dry_run && done.changed)
    if (Status s = replace_file(done.path, text); !s.ok()) return code = kMachine, s;
  std::error_code error;
  done.planner_reads = tuned_path(Device{.name = curves.device});
  done.is_read = !fs::exists(done.path, error) || fs::equivalent(done.planner_reads, done.path, error);
  return Status::good();
}

Json as_json(const std::vector<Done>& all, const Gathered& gathered) {
  Json j = {{"devices", Json::array()}, {"left_out", Json::object()}};
  for (const auto& [why, n] : gathered.left_out) j["left_out"][why] = n;
  for (const Done& d : all) {
    Json keys = Json::array(), wrong = Json::array();
    for (const TunedKey& k : d.file.keys) {
      Json rules = Json::array();
      for (const Rule& r : k.rules) {
        Json rule = {{"len", r.min_len}, {"backend", r.backend}};
        if (r.min_work) rule["work"] = r.min_work;
        rules.push_back(std::move(rule));
      }
      keys.push_back({{"key", name(k.key)}, {"sentence", k.sentence}, {"rules", rules}, {"rows", k.rows.size()}});
    }
    for (const CheckedChoice& c : d.checked)
      if (!c.right())
        wrong.push_back({{"problem", c.problem}, {"chosen", c.chosen}, {"fastest", c.fastest}, {"slower", c.slower},
                         {"spread", c.spread}});
    j["devices"].push_back({{"device", d.device}, {"file", d.path}, {"changed", d.changed},
                            {"planner_reads", d.planner_reads.empty() ? Json(nullptr) : Json(d.planner_reads)},
                            {"keys", keys},
                            {"checked", d.checked.size()}, {"right", d.right()}, {"wrong", wrong}});
  }
  return j;
}

void print(const std::vector<Done>& all, const Gathered& gathered, const Asked& asked) {
  const char* const wrote = asked.dry_run ? "would write" : "wrote";
  for (const Done& d : all) {
    fmt::print("{}\n", d.device);
    for (const TunedKey& k : d.file.keys) fmt::print("  {}: {}\n", name(k.key), k.sentence);
    fmt::print("  {} {}\n", !d.changed ? "nothing changes in" : wrote, d.path);
    if (!d.is_read)
      fmt::print("  warning: here the planner reads {}\n", d.planner_reads.empty()
                                                               ? "no file for this device; set ATTUNE_TUNED"
                                                               : d.planner_reads + ", not that file");
    // One wide interval can keep a backend from being used at any length; the choice is then slower.
    const auto slow = std::count_if(d.own.begin(), d.own.end(), [&](const CheckedChoice& c) {
      return c.by_rule && c.slower > asked.settings().margin;
    });
    if (slow)
      fmt::print("  warning: at {} of {} behind the rules the choice is more than {:g} % slower than the "
                 "fastest: their intervals are wide, measure longer\n", slow, counted(d.own.size(), "row"),
                 asked.margin_percent);
    if (!d.checked.empty())
      fmt::print("  checked at {}: the choice is the fastest or within the A/A spread at {} ({:.1f} %)\n",
                 counted(d.checked.size(), "other row"), d.right(), 100.0 * d.right() / double(d.checked.size()));
    for (const CheckedChoice& c : d.checked)
      if (!c.right())
        fmt::print("    {}: {} by {}, {:.1f} % slower than {}, A/A spread {:.1f} %\n", c.problem, c.chosen,
                   c.by_rule ? "a rule" : "the order", 100 * c.slower, c.fastest, 100 * c.spread);
  }
  for (const auto& [why, n] : gathered.left_out) fmt::print("left out {} record{}: {}\n", n, n == 1 ? "" : "s", why);
}

// Puts the thresholds into the file of --yaml, in place; a file that is not there is made. Prints what changes.
Status edit_yaml(const Asked& asked, const std::vector<Threshold>& thresholds, const std::string& comment,
                 bool silent) {
  // The keys of systems that enable a fused kernel from a length on stand anywhere, or are added to their section.
  const bool usual = asked.yaml_keys.empty();
  std::vector<std::string> words = asked.yaml_keys;
  if (usual) words = {"fa2_min_len_win=window", "fa2_min_len_cmp=compressed"};
  std::error_code error;
  const fs::path folder = fs::path(asked.yaml).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, error))
    return Status::no("--yaml: '", asked.yaml, "': there is no folder '", folder.string(), "'");
  FolderLock lock;  // until the file is replaced: another tune would lose these values, or these would lose its
  if (!asked.dry_run)
    if (Status s = lock.take(folder); !s.ok())
      return Status::failure(Code::device, "--yaml: ", folder.empty() ? "." : folder.string(), ": ", s.message);
  std::string before;
  if (Status s = read_whole(asked.yaml, before); !s.ok()) return s;
  std::string text = before.empty() ? comment : before;
  for (const std::string& word : words) {
    YamlKey key;
    if (Status s = read_yaml_key(word, key); !s.ok()) return s;
    if (Status s = has_one_unit(key, thresholds); !s.ok()) return s;
    const std::optional<int> value = value_of(key, thresholds);
    std::string path, now = text;
    Status s = yaml_path_of(text, key.path, path);
    if (s.ok() && path.empty()) path = usual ? "runtime." + key.path : key.path;
    if (s.ok() && path.find('.') == path.npos && !before.empty() && yaml_has(text, path) == false)
      s = Status::no(path, ": is not in the file; a new key is named with its parent: parent.", path);
    if (s.ok() && (value || !usual)) s = set_yaml(now, path, join(value.value_or(0)));
    if (!s.ok()) return s.after("--yaml: ", asked.yaml, ": ");
    if (value) text = std::move(now);
    else if (!silent)
      fmt::print("{}: no {}: it stays as it is\n", path,
                 key.what == "window" ? "rows of several windows decide" : join("rows of ", key.what, " decide"));
  }
  const bool changes = text != before && text != comment;
  if (!silent) fmt::print("{}", changes ? yaml_diff(before, text) : "");
  if (!asked.dry_run && changes)
    if (Status s = replace_file(asked.yaml, text, Before::each); !s.ok())
      return Status::failure(Code::device, s.message);
  if (!silent)
    fmt::print("{} {}\n", !changes ? "nothing changes in" : asked.dry_run ? "would write" : "wrote", asked.yaml);
  return Status::good();
}

std::string yaml_comment(const std::string& device, const std::string& measured, double margin) {
  return fmt::format("# {}, {}\n# lengths from which the faster one is at least {:g} % faster, there and at every "
                     "longer one; -1: never\n", device, measured, 100 * margin);
}

Json as_json(const Between& b) {
  Json j = {{"devices", Json::array()}, {"left_out", Json::object()}};
  for (const auto& [why, n] : b.left_out) j["left_out"][why] = n;
  const auto number = [](double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); };
  for (const BetweenDevice& d : b.devices) {
    Json all = Json::array();
    for (const Threshold& t : d.thresholds) {
      Json points = Json::array();
      for (size_t n = 0; n < t.ratios.size(); ++n)
        points.push_back({{"length", t.lengths[n]}, {"ratio", number(t.ratios[n])}, {"low", number(t.lows[n])}});
      all.push_back({{"key", name(t.key)}, {"by", t.by_window ? "window" : "keys"},
                     {"from", t.from ? Json(*t.from) : Json(nullptr)}, {"why_not", t.why_not}, {"points", points}});
    }
    j["devices"].push_back({{"device", d.device}, {"measured", d.measured}, {"thresholds", all}});
  }
  return j;
}

// --between A,B: prints from where on A is faster than B. The planner's rules stay as they are.
void tune_between(const Asked& asked, Context& context) {
  const auto no = [&](Exit code, const Status& s) { fail(context, code, join("attune tune: ", s.message)); };
  std::vector<Record> records;
  if (const Status s = read_files("attune tune", asked.files, records); !s.ok()) return no(exit_of_read(s), s);
  const std::string &faster = asked.between[0], &baseline = asked.between[1];
  const Between found = between(records, faster, baseline, asked.gathering, asked.settings());
  std::set<std::string> there;
  for (const Record& r : records) there.insert(r.subject);
  std::string names;
  for (const std::string& name : there) names += join(names.empty() ? "" : ", ", name);
  for (const std::string& name : asked.between)
    if (!there.count(name))
      return no(kFailed, Status::no("--between: no record is of ", name, "; they are of ",
                                    names.empty() ? "nothing" : names));
  if (found.devices.empty())
    return no(kFailed, Status::no("--between: no row of ", faster, " and ", baseline, " can be used"));
  if (context.json) fmt::print("{}\n", as_json(found).dump(2));
  else
    for (const BetweenDevice& d : found.devices) {
      fmt::print("{}: {} against {}, margin {:g} %\n", d.device, faster, baseline, asked.margin_percent);
      for (const Threshold& t : d.thresholds) fmt::print("  {}\n", text_of(t));
    }
  if (!context.json)
    for (const auto& [why, n] : found.left_out)
      fmt::print("left out {} record{}: {}\n", n, n == 1 ? "" : "s", why);
  if (asked.yaml.empty()) return;
  if (found.devices.size() != 1)
    return no(kFailed, Status::no("--yaml: the records come from ", found.devices.size(),
                                  " devices; it needs records of one"));
  const BetweenDevice& d = found.devices[0];
  if (const Status s = edit_yaml(asked, d.thresholds, yaml_comment(d.device, d.measured, asked.settings().margin),
                                 context.json);
      !s.ok())
    no(s.code == Code::device ? kMachine : kFailed, s);
}

// The decisions of a tuned file, as thresholds of the fastest backend against the baseline.
std::vector<Threshold> thresholds_of(const TunedFile& file) {
  std::vector<Threshold> all;
  for (const TunedKey& k : file.keys)
    if (k.decided) all.push_back({.key = k.key, .by_window = true, .from = k.from});
  return all;
}

void tune_once(const Asked& asked, Context& context) {
  const auto no = [&](Exit code, const Status& s) { fail(context, code, join("attune tune: ", s.message)); };
  std::vector<Record> records, other;
  if (const Status s = read_files("attune tune", asked.files, records); !s.ok()) return no(exit_of_read(s), s);
  if (!asked.check.empty())
    if (const Status s = read_files("attune tune", {asked.check}, other); !s.ok()) return no(exit_of_read(s), s);
  const Gathered gathered = gather(records, asked.gathering);
  if (gathered.devices.empty()) {
    std::string why;
    for (const auto& [reason, n] : gathered.left_out)
      why += join(why.empty() ? ": " : "; ", n, n == 1 ? " record: " : " records: ", reason);
    return no(kFailed, Status::no("no record can be used", why));
  }
  std::vector<Done> all;
  for (const DeviceCurves& d : gathered.devices) {
    Done& done = all.emplace_back();
    Exit code = kFailed;
    if (const Status s = tune_device(asked, d, gathered.devices.size(), done, code); !s.ok()) return no(code, s);
    done.own = check_choices(records, done.file.rules(), d.device, asked.gathering);
    if (!asked.check.empty()) done.checked = check_choices(other, done.file.rules(), d.device, asked.gathering);
  }
  if (context.json)
    fmt::print("{}\n", as_json(all, gathered).dump(2));
  else print(all, gathered, asked);
  if (!asked.yaml.empty()) {
    GatherSettings windows = asked.gathering;
    windows.by_window = true;
    const Gathered by_window = gather(records, windows);
    if (by_window.devices.size() != 1)
      return no(kFailed, Status::no("--yaml: the records come from ", by_window.devices.size(),
                                    " devices; it needs records of one"));
    const TunedFile file = tune(by_window.devices[0], {}, asked.settings());
    const std::string comment = yaml_comment(file.device, file.measured, asked.settings().margin);
    if (const Status s = edit_yaml(asked, thresholds_of(file), comment, context.json); !s.ok())
      return no(s.code == Code::device ? kMachine : kFailed, s);
  }
  if (asked.check.empty()) return;
  size_t checked = 0, right = 0;
  for (const Done& d : all) checked += d.checked.size(), right += size_t(d.right());
  if (!checked) no(kFailed, Status::no("--check: ", asked.check, " has no row with two backends of these devices"));
  else if (100. * double(right) < asked.bar_percent * double(checked))
    no(kFailed,
       Status::no("the choice is right at ", right, " of ", counted(checked, "row"), ", below ",
                  asked.bar_percent, " %"));
}

void run(Asked& asked, Context& context) {
  for (size_t n = 0; n < asked.gathering.buckets.size(); ++n)
    if (asked.gathering.buckets[n] < 1 || (n && asked.gathering.buckets[n] <= asked.gathering.buckets[n - 1]))
      return fail(context, kUsage, "attune tune: --buckets: must be increasing numbers of at least 1: 1,17,65");
  if (const std::string& name = asked.gathering.against; !name.empty()) {
    const Backend* const baseline = find_backend(name);
    if (!baseline)
      return fail(context, kUsage, join("attune tune: --against: ", not_one_of(name, backend_names())));
    if (baseline->only_by_name)
      return fail(context, kUsage,
                  join("attune tune: --against: ", name, " runs only by name, so its records do not count"));
  }
  for (const std::string& word : asked.yaml_keys) {
    YamlKey key;
    if (const Status s = read_yaml_key(word, key); !s.ok())
      return fail(context, kUsage, join("attune tune: ", s.message));
  }
  if (!asked.yaml_keys.empty() && asked.yaml.empty())
    return fail(context, kUsage, "attune tune: --key: given without --yaml, the file that has the keys");
  if (!asked.between.empty()) {
    if (asked.between.size() != 2 || asked.between[0] == asked.between[1])
      return fail(context, kUsage, join("attune tune: --between: ", counted(asked.between.size(), "name"),
                                        " given; accepted are two that differ: flash_attn,torch:sdpa"));
    return tune_between(asked, context);
  }
  if (asked.watch.empty()) return tune_once(asked, context);
  if (asked.files.size() != 1)
    return fail(context, kUsage,
                join("attune tune: --watch: ", counted(asked.files.size(), "file"),
                     " given; give one, to which it appends"));
  const Status s = watch({.log = asked.watch, .records = asked.files[0], .once = asked.once},
                         [&] { tune_once(asked, context); });
  if (!s.ok()) fail(context, kMachine, join("attune tune: ", s.message));
}

}  // namespace

void add_tune(CLI::App& app, Context& context) {
  const Command sub = add_command(app, "tune", "Turn records into the rules that choose backends on a device");
  const auto asked = std::make_shared<Asked>();
  sub.add_option("records", asked->files, "Read records from these files of attune bench --backend all")
      .required()
      .type_name("FILE");
  sub.add_option("--margin", asked->margin_percent,
                 "Require the lower bound of a speed-up over the baseline to be this many percent above 1")
      .type_name("PERCENT")
      .between(0.0, 1000.0)
      .show_default();
  sub.add_option("--hysteresis", asked->hysteresis_percent,
                 "Require this many percent less of the backend that the existing file chooses")
      .type_name("PERCENT")
      .between(0.0, 1000.0)
      .show_default();
  sub.add_option("--buckets", asked->gathering.buckets, "Begin ranges of batch x heads at these numbers: 1,17,65,257")
      .delimiter(',')
      .one_word()
      .type_name("LIST");
  sub.add_option("--against", asked->gathering.against,
                 "Use this baseline, and make no rule where it was not measured; default the standard backend where it "
                 "was measured, else the first backend of the list")
      .type_name("NAME");
  sub.add_option("--timing", asked->gathering.timing,
                 "Use only rows of this timing: cold, warm or graph; default cold on a GPU and warm on a CPU")
      .one_of({"cold", "warm", "graph"});
  sub.add_option("--out", asked->out,
                 "Write this .tsv file, or into this folder; default ATTUNE_TUNED or the user's configuration")
      .type_name("PATH");
  sub.add_flag("--project", asked->project, "Write .attune/<device>.tsv of this folder, for ATTUNE_TUNED=.attune")
      .excludes("--out");
  sub.add_flag("--fresh", asked->fresh, "Ignore the existing file: no hysteresis, no kept rules");
  sub.add_flag("--dry-run", asked->dry_run, "Only print what would be written");
  const Argument check =
      sub.add_option("--check", asked->check, "Then check the rules on these records, from which they were not made")
          .type_name("FILE");
  sub.add_option("--bar", asked->bar_percent, "With --check: require this many percent of its rows to be right")
      .type_name("PERCENT")
      .between(0.0, 100.0)
      .needs(check)
      .show_default();
  sub.add_option("--between", asked->between,
                 "Find from which length on the first of these two subjects, which may be peers, is faster than the "
                 "second; the planner's rules are left alone")
      .delimiter(',')
      .one_word()
      .type_name("A,B")
      .excludes("--check")
      .excludes("--out")
      .excludes("--project");
  sub.add_option("--yaml", asked->yaml,
                 "Put thresholds into this configuration file, in place: only the values of --key change")
      .type_name("FILE");
  sub.add_option("--key", asked->yaml_keys,
                 "Keys of --yaml and what they are thresholds of: path.to.key=full|causal|window|compressed|all; "
                 "default fa2_min_len_win=window and fa2_min_len_cmp=compressed, wherever they stand")
      .delimiter(',')
      .one_word()
      .type_name("LIST");
  const Argument watch =
      sub.add_option("--watch", asked->watch,
                     "Measure every new problem in this log of a process with ATTUNE_LOG=1, append to the records, "
                     "tune")
          .type_name("LOG");
  sub.add_flag("--once", asked->once, "With --watch: stop at the end of the log").needs(watch);
  sub.footer(
      "Examples:\n"
      "  attune bench --backend all --len 256-8192*2 --mask full,causal --out records.jsonl\n"
      "  attune tune records.jsonl\n"
      "  attune tune records.jsonl --project --margin 10 --check other.jsonl\n"
      "  attune tune peers.jsonl --between flash_attn,torch:sdpa --yaml configs/base.yaml\n"
      "  ATTUNE_LOG=1 ./my_program 2> calls.log & attune tune live.jsonl --watch calls.log\n\n"
      "A backend is used from the smallest length at which the lower bound of its speed-up is at least 1 + margin,\n"
      "there and at every longer length, if at least two lengths agree; else never. The fastest of these backends is "
      "used.\n"
      "Exit code 1 if no record can be used, the existing file cannot be read, or --check is below the bar.");
  sub.callback([asked, &context] { run(*asked, context); });
}

}  // namespace attune
