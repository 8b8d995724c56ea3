// SPDX-License-Identifier: Apache-2.0
// `attune remote`: runs a command of attune on other machines, and brings back what it measured.
#include <algorithm>
#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/remote/run/bundle.h"
#include "tool/remote/run/client.h"
#include "tool/remote/command.h"
#include "tool/remote/journal.h"
#include "tool/remote/offers.h"
#include "tool/remote/price_list.h"
#include "tool/remote/secret.h"

namespace attune {
namespace {

struct Asked {
  std::vector<std::string> words{}, on{}, sent{};
  std::string verb{}, gpu{}, out{}, bundle{}, config{}, resume{}, prices{};
  std::optional<double> max_usd{}, max_minutes{};
  int ranks = 1, shares = 1;
  double silence_minutes = 10;
  bool detach = false, no_store = false;
};

constexpr const char* kVerbs = "run, offers, prices, attach, logs, list, reap";
// Commands that need the machine of the user.
constexpr std::string_view kNotThere[] = {"remote", "serve", "completion", "store", "history"};

Exit exit_of(const Status& s) {
  if (s.code == Code::out_of_memory) return kUnclear;
  return s.code == Code::invalid ? kUsage : kMachine;
}

Status targets_of(const Asked& asked, const RemoteSettings& settings, std::vector<Target>& all) {
  for (const std::string& word : asked.on) {
    Target t;
    if (Status s = parse_target(word, settings, t); !s.ok()) return s;
    if (!asked.gpu.empty()) t.gpu = asked.gpu;
    if (t.kind == "prime" || t.kind == "modal") t.gpu = asked.gpu.empty() ? t.gpu : asked.gpu;
    all.push_back(std::move(t));
  }
  return Status::good();
}

Status words_fit(const std::vector<std::string>& words) {
  if (words.empty()) return Status::no("no command given; write it behind --, as in: -- bench --suite decode");
  if (words[0].starts_with('-')) return Status::no("'", words[0], "' is not a command of attune");
  if (std::find(std::begin(kNotThere), std::end(kNotThere), words[0]) != std::end(kNotThere))
    return Status::no("'", words[0], "' works on this machine only");
  if (words[0] != "bench") return Status::good();
  for (const std::string& word : words)
    for (const std::string_view own : {"--out", "--resume", "--json", "--dry-run", "--sign", "--share"})
      if (word == own || word.starts_with(std::string(own) + "="))
        return Status::no(own, ": not accepted behind --; rows come back by themselves, and remote has --out, "
                          "--resume and --shares");
  return Status::good();
}

Status files_fit(Asked& asked) {
  std::error_code error;
  std::vector<std::string> names;
  for (std::string& path : asked.sent) {
    const std::filesystem::path whole = std::filesystem::absolute(path, error);
    if (!std::filesystem::is_regular_file(whole, error))
      return Status::failure(Code::device, "--send: '", path, "' is not a file");
    const std::string name = whole.filename();
    if (name == "rows.jsonl" || std::find(names.begin(), names.end(), name) != names.end())
      return Status::no("--send: '", path, "': a file of the name ", name, " is there already");
    names.push_back(name);
    path = whole;
  }
  return Status::good();
}

// What stands in the plan of the run that is continued: its targets and its command.
Status resume(const Asked& asked, RemotePlan& plan) {
  RemotePlan old;
  if (Status s = read_plan(asked.resume, old); !s.ok())
    return Status::no("--resume: '", asked.resume, "' is not a run; attune remote list shows them");
  if (!asked.words.empty() || !asked.on.empty())
    return Status::no("--resume: the run has its own targets and command; give neither --on nor a command");
  if (!writes_rows(old)) return Status::no("--resume: the run has no rows; only bench can be continued");
  plan.legs = old.legs, plan.command = old.command, plan.sent = old.sent, plan.ranks = old.ranks;
  plan.resumed = old.id;
  for (Leg& leg : plan.legs) leg = {.target = leg.target, .share = leg.share, .shares = leg.shares};
  return Status::good();
}

Status plan_of(Asked& asked, const RemoteSettings& settings, RemotePlan& plan) {
  plan.id = new_run_id();
  plan.cap = {.usd = asked.max_usd ? asked.max_usd : settings.max_usd,
              .minutes = asked.max_minutes ? asked.max_minutes : settings.max_minutes};
  plan.silence_s = asked.silence_minutes * 60, plan.store = !asked.no_store, plan.ranks = asked.ranks;
  std::error_code error;
  if (!asked.out.empty()) plan.out = std::filesystem::absolute(asked.out, error);
  if (!asked.resume.empty()) return resume(asked, plan);
  if (asked.on.empty()) return Status::no("--on: not given; accepted are ", kTargetKinds, ", and names of remote.toml");
  std::vector<Target> targets;
  if (Status s = targets_of(asked, settings, targets); !s.ok()) return s;
  if (Status s = words_fit(asked.words); !s.ok()) return s;
  if (asked.shares > 1 && asked.words[0] != "bench")
    return Status::no("--shares: accepted with bench only, whose rows can be divided");
  for (const Target& t : targets)
    for (int share = 1; share <= asked.shares; ++share) {
      plan.legs.push_back({.target = t, .share = share, .shares = asked.shares});
      if (asked.shares > 1) plan.legs.back().target.name += join(" ", share, "/", asked.shares);
    }
  if (Status s = files_fit(asked); !s.ok()) return s;
  plan.command = asked.words, plan.sent = asked.sent;
  return Status::good();
}

Status prepare(Asked& asked, const RemoteSettings& settings, RemotePlan& plan) {
  if (runs_folder().empty()) return Status::failure(Code::device, "neither XDG_STATE_HOME nor HOME is set");
  double seconds = 0;
  if (Status s = plan_of(asked, settings, plan); !s.ok()) return s;
  if (Status s = estimate(plan, seconds); !s.ok()) return s;
  if (Status s = choose_offers(plan, seconds); !s.ok()) return s;
  Bundle bundle;
  if (Status s = asked.bundle.empty() ? make_bundle(bundle) : read_bundle(asked.bundle, bundle); !s.ok()) return s;
  for (const Leg& leg : plan.legs)
    if (!leg.target.gpu.empty() && bundle.gpus.empty())
      return Status::failure(Code::device, leg.target.name, ": this build has no GPU code; give one that has with "
                             "--bundle");
  for (const Leg& leg : plan.legs)  // before anything is taken or paid
    if (!leg.offer.facts.empty())
      if (Status s = fits(bundle, leg.offer.facts, !leg.target.gpu.empty()); !s.ok())
        return s.after(leg.target.name, ": ");
  plan.bundle = bundle.path;
  return Status::good();
}

void run(Asked& asked, const RemoteSettings& settings, Context& context) {
  RemotePlan plan;
  Status s = prepare(asked, settings, plan);
  if (s.ok()) s = launch(plan);
  if (!s.ok()) return fail(context, exit_of(s), join("attune remote run: ", s.message));
  if (!context.json || asked.detach) fmt::print(asked.detach ? stdout : stderr, "run {}\n", plan.id);
  std::fflush(stdout);
  if (!asked.detach) follow_run(plan, context);
}

// The run of attach and logs: the one that is named, else the last one.
Status named_run(const std::vector<std::string>& words, RemotePlan& plan) {
  const std::vector<std::string> ids = run_ids();
  if (words.size() > 1) return Status::no("'", words[1], "' is an unexpected argument");
  if (ids.empty()) return Status::failure(Code::device, "there are no runs yet");
  const std::string id = words.empty() ? ids.back() : words[0];
  if (std::find(ids.begin(), ids.end(), id) == ids.end())
    return Status::failure(Code::device, "'", id, "' is not a run; attune remote list shows them");
  return read_plan(id, plan);
}

// "H100,L4" of --gpu.
std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> all;
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    if (end > at) all.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return all;
}

void offers(Asked& asked, const RemoteSettings& settings, Context& context) {
  AskedOffers wanted{.gpus = split(asked.gpu), .command = asked.words};
  asked.gpu.clear();
  if (const Status s = targets_of(asked, settings, wanted.targets); !s.ok())
    return fail(context, kUsage, join("attune remote offers: ", s.message));
  show_offers(wanted, context);
}

// The price list in use, to be changed and given to --prices.
void print_prices(Context& context) {
  PriceList list;
  if (const Status s = price_list(list); !s.ok())
    return fail(context, exit_of_read(s), join("attune remote prices: ", s.message));
  if (!context.json) return fmt::print("{}", kShippedPrices);
  Json all = Json::array();
  for (const Offer& o : list.offers)
    all.push_back({{"name", o.name}, {"device", o.device}, {"usd_an_hour", o.usd_an_hour}, {"step_s", o.step_s},
                   {"minimum_usd", o.minimum_usd}});
  fmt::print("{}\n", Json{{"date", list.date}, {"source", list.source}, {"offers", all}}.dump(2));
}

void remote(Asked& asked, Context& context) {
  keep_secrets();
  RemoteSettings settings;
  if (const Status s = read_remote_settings(asked.config, settings); !s.ok())
    return fail(context, exit_of_read(s) == kMachine ? kMachine : kUsage, join("attune remote: ", s.message));
  use_price_list(asked.prices.empty() ? settings.prices : asked.prices);
  const std::string& verb = asked.verb;
  RemotePlan plan;
  if (verb != "reap")
    for (const std::string& id : revive_dead_runs())
      fmt::print(stderr, "attune remote: run {} was killed; what it left is being released\n", id);
  if (verb == "run") return run(asked, settings, context);
  if (verb == "attach" || verb == "logs") {
    if (const Status s = named_run(asked.words, plan); !s.ok())
      return fail(context, exit_of(s), join("attune remote ", verb, ": ", s.message));
    return verb == "logs" ? print_logs(plan, context) : follow_run(plan, context);
  }
  if (verb == "list") return list_runs(context);
  if (verb == "prices") return print_prices(context);
  if (verb == "offers") return offers(asked, settings, context);
  if (verb == "reap") {
    std::vector<Target> targets;
    if (const Status s = targets_of(asked, settings, targets); !s.ok())
      return fail(context, kUsage, join("attune remote reap: ", s.message));
    return reap(targets, context);
  }
  fail(context, kUsage, verb.empty() ? join("attune remote: no verb given; accepted are ", kVerbs)
                                     : join("attune remote: '", verb, "' is not one of ", kVerbs));
}

}  // namespace

void add_remote(CLI::App& app, Context& context) {
  const Command sub =
      add_command(app, "remote", "Run a command on other machines, and bring back what it measured");
  const auto asked = std::make_shared<Asked>();
  sub.add_option("verb", asked->verb, join("What to do: ", kVerbs)).type_name("VERB");
  sub.add_option("words", asked->words,
                 "For run and offers, behind --: a command of attune; for attach and logs: the run's id")
      .type_name("WORD");
  sub.add_option("--on", asked->on, join("Run on these targets: ", kTargetKinds, ", or names of remote.toml"))
      .delimiter(',')
      .one_word()
      .type_name("LIST");
  sub.add_option("--gpu", asked->gpu, "Want this GPU there: H100; offers takes several: H100,L4").type_name("NAME");
  sub.add_option("--max-usd", asked->max_usd, "Spend at most this on all targets together, from start to teardown")
      .type_name("USD")
      .between(0.01, 1e6);
  sub.add_option("--max-minutes", asked->max_minutes, "Keep each machine at most this long")
      .type_name("MINUTES")
      .between(0.1, 10080.0);
  sub.add_option("--prices", asked->prices,
                 "Take prices that no provider tells from this file; attune remote prices prints the list that ships")
      .type_name("FILE");
  sub.add_option("--ranks", asked->ranks, "Start this many processes of the command, with srun or mpirun")
      .type_name("N")
      .between(1, 4096)
      .show_default();
  sub.add_option("--shares", asked->shares,
                 "Divide the rows of bench over this many jobs, folders or rented machines of each target")
      .type_name("N")
      .between(1, 64)
      .show_default();
  sub.add_option("--send", asked->sent, "Send these files along; the command finds them in its folder")
      .delimiter(',')
      .one_word()
      .type_name("LIST");
  sub.add_option("--bundle", asked->bundle, "Run this bundle, from another build, instead of this one")
      .type_name("FILE");
  sub.add_option("--out", asked->out, "Copy the results into this folder").type_name("FOLDER");
  sub.add_option("--config", asked->config,
                 "Read targets and defaults from this file; default attune/remote.toml in the user's configuration")
      .type_name("FILE.toml");
  sub.add_option("--resume", asked->resume, "Continue the bench of this run: rows that are there are kept")
      .type_name("ID");
  sub.add_option("--silence", asked->silence_minutes,
                 "Let a machine end itself when it hears nothing for this many minutes")
      .type_name("MINUTES")
      .between(0.1, 1440.0)
      .show_default();
  sub.add_flag("--detach", asked->detach, "Print the run's id and return; attach shows the run again");
  sub.add_flag("--no-store", asked->no_store, "Leave the rows out of the user's store");
  sub.footer(
      "Examples:\n"
      "  attune remote run --on ssh:me@box -- bench --suite decode\n"
      "  attune remote run --on ssh:a,ssh:b --out results -- bench --suite decode --backend all\n"
      "  attune remote run --on slurm:gpu --gpu h100 --max-minutes 30 -- bench --suite nsa\n"
      "  attune remote run --on slurm:cpu --ranks 4 -- parity --ring\n"
      "  attune remote run --on slurm:gpu --shares 8 -- bench --suite regress\n"
      "  attune remote offers --gpu H100,L4 -- bench --suite decode\n"
      "  attune remote run --on prime:H200 --max-usd 3 -- bench --suite decode\n"
      "  attune remote attach\n"
      "  attune remote reap --on ssh:me@box\n\n"
      "Exit codes: that of the command; 3 if a machine cannot serve or was lost, 4 if money or time do not suffice.");
  sub.callback([asked, &context] { remote(*asked, context); });
}

}  // namespace attune
