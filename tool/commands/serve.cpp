// SPDX-License-Identifier: Apache-2.0
// `attune serve`: serves the page of `attune report` over growing files, to watch a run on this machine or one synced
// to it. It listens on loopback by default, because a page of records describes this machine.
#include <fmt/format.h>

#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <new>
#include <set>
#include <string>

#include "machine/files.h"
#include "tool/cli.h"
#include "tool/commands/commands.h"
#include "tool/json.h"
#include "tool/report/sources.h"
#include "tool/serve/http.h"

namespace attune {
namespace {

struct Asked {
  SourceFiles from{};
  std::string address{"127.0.0.1"};
  int port = 8017;
};

std::atomic<bool> stop{false};

// A server that waits for a pipe answers no one, and a file may become one at any time.
Status are_regular(const SourceFiles& files) {
  std::vector<std::string> paths = files.records;
  paths.insert(paths.end(), {files.baseline, files.tuned, files.prices});
  for (const std::string& path : paths)
    if (std::error_code error; std::filesystem::exists(path, error))
      if (Status s = is_finite(path, false); !s.ok()) return s.after("'", path, "' ");
  return Status::good();
}

// The pages, rebuilt only if a file has changed.
class Pages {
 public:
  explicit Pages(SourceFiles files) : files_(std::move(files)) {}

  Status refresh() {
    const std::string now = revision_of_files();
    if (now == revision_) return status_;
    revision_ = now;
    SourceFiles there = files_;  // a file that never existed is awaited; one that disappeared is an error
    std::erase_if(there.records, [&](const std::string& path) {
      std::error_code error;  // an unreadable folder does not mean that the file is missing
      if (std::filesystem::exists(path, error) || error) seen_.insert(path);
      return !seen_.contains(path);
    });
    if (status_ = are_regular(there); !status_.ok()) return status_;
    try {
      Sources next;
      status_ = read_sources(there, next);
      if (!status_.ok()) return status_;  // keeps the previous page
      const Report report = make_report(next);
      const auto shared = [](std::string text) { return std::make_shared<const std::string>(std::move(text)); };
      auto page = shared(to_html(report, revision_)), markdown = shared(to_markdown(report));
      rows_ = shared(to_csv(next.records)), page_ = std::move(page), markdown_ = std::move(markdown);
    } catch (const std::bad_alloc&) {
      status_ = Status::no("not enough memory on this machine");
    }
    return status_;
  }

  HttpResponse answer(const HttpRequest& request) {
    const Status s = refresh();
    const auto wrong = [&] { return HttpResponse{.code = 500, .body = s.message + "\n"}; };
    if (request.path == "/revision") return s.ok() ? HttpResponse{.body = revision_ + "\n"} : wrong();
    if (!page_) return wrong();
    if (request.path == "/") return {.type = "text/html; charset=utf-8", .shared = page_};
    if (request.path == "/report.md") return {.type = "text/markdown; charset=utf-8", .shared = markdown_};
    if (request.path == "/rows.csv") return {.type = "text/csv; charset=utf-8", .shared = rows_};
    return {.code = 404, .body = "not found; the pages are /, /report.md, /rows.csv and /revision\n"};
  }

 private:
  std::string revision_of_files() const {
    std::string all;
    std::vector<std::string> paths = files_.records;
    paths.insert(paths.end(), {files_.baseline, files_.tuned, files_.prices});
    for (const std::string& path : paths) {
      struct stat s{};
      if (path.empty()) continue;
      if (stat(path.c_str(), &s)) all += "none.";
      else all += fmt::format("{}-{}-{}.", s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
    }
    return all;
  }

  SourceFiles files_;
  Status status_{};
  std::string revision_{};
  std::shared_ptr<const std::string> page_{}, markdown_{}, rows_{};  // shared by the clients that read them
  std::set<std::string> seen_{};  // record files that have existed at some time
};

void run(const Asked& asked, Context& context) {
  for (const std::string& path : asked.from.records) {
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::absolute(path, error).parent_path();
    if (std::filesystem::is_directory(path, error) || !std::filesystem::is_directory(folder, error))
      return fail(context, kMachine,
                  join("attune serve: '", path, "' is not a file in an existing folder"));
  }
  if (const Status s = are_regular(asked.from); !s.ok())
    return fail(context, kFailed, join("attune serve: ", s.message));
  Pages pages(asked.from);
  if (const Status s = pages.refresh(); !s.ok())
    return fail(context, exit_of_read(s), join("attune serve: ", s.message));
  HttpServer server;
  if (const Status s = server.open(asked.address, asked.port); !s.ok())
    return fail(context, s.code == Code::invalid ? kUsage : kMachine, join("attune serve: ", s.message));
  stop = false;
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { stop = true; });
  if (context.json) {
    fmt::print("{}\n", Json{{"url", server.url()}}.dump());
  } else {
    fmt::print("{}  until Ctrl-C\n", server.url());
    for (const std::string& path : asked.from.records)
      if (std::error_code error; !std::filesystem::exists(path, error))
        fmt::print("{} does not exist yet; waiting for it\n", path);
    if (!server.loopback()) fmt::print("warning: everyone who can reach {} can read the page\n", asked.address);
  }
  std::fflush(stdout);
  server.run(
      [&](const HttpRequest& request) -> HttpResponse {
        if (!server.answers_to(request.host))
          return {.code = 403, .body = "forbidden; use a loopback name or the address of the server\n"};
        return pages.answer(request);
      },
      stop);
}

}  // namespace

void add_serve(CLI::App& app, Context& context) {
  const Command sub = add_command(app, "serve", "Serve the report as a live page over growing files of records");
  const auto asked = std::make_shared<Asked>();
  add_sources(sub, asked->from);
  sub.add_option("--port", asked->port, "Listen on this port; 0 takes a free one")
      .type_name("N")
      .between(0, 65535)
      .show_default();
  sub.add_option("--bind", asked->address,
                 "Listen on this numeric address; any but loopback lets other machines read the page")
      .type_name("ADDRESS")
      .show_default();
  sub.footer(
      "Examples:\n"
      "  attune bench --suite nsa --out run.jsonl & attune serve run.jsonl\n"
      "  attune serve today.jsonl --baseline monday.jsonl --port 0\n\n"
      "It waits for a file that does not exist yet. Ctrl-C ends it.");
  sub.callback([asked, &context] { run(*asked, context); });
}

}  // namespace attune
