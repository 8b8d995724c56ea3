// SPDX-License-Identifier: Apache-2.0
#include "tool/remote/drivers/prime_gateway.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include "tool/text.h"

namespace attune {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Status judge_code(const WebReply& reply) {
  if (reply.code >= 200 && reply.code < 300) return Status::good();
  return Status::failure(Code::device, "the sandbox's gateway answered ", reply.code);
}
bool knows_no_sandbox(const WebReply& reply) {
  JsonValue json;
  return reply.code == 404 || (reply.code == 502 && JsonValue::parse(reply.body, json).ok() &&
                               json["error"].text() == "sandbox_not_found");
}
Status judge_stream(const WebReply& reply, bool& missing) {
  missing = knows_no_sandbox(reply);
  if (Status s = judge_code(reply); !s.ok()) return s;
  CommandOutput ignored;
  return read_stream(reply.body, ignored, missing);
}
Status judge_upload(const WebReply& reply, bool& missing) {
  missing = knows_no_sandbox(reply);
  return judge_code(reply);
}

}  // namespace

Status PrimeGateway::access(const std::string& sandbox, Access& out, double limit_s) {
  if (const auto found = known_.find(sandbox); found != known_.end()) return out = found->second, Status::good();
  JsonValue json;
  int code = 0;
  if (Status s = api_.call({.method = "POST", .path = "/sandbox/" + url_escaped(sandbox) + "/auth",
                            .body = Json::object(), .limit_s = limit_s}, json, code); !s.ok())
    return s;
  std::string base = json["gateway_url"].text();
  while (base.ends_with('/')) base.pop_back();
  out.token = json["token"].text();
  const std::string space = json["user_ns"].text(), job = json["job_id"].text();
  if (code == 404 || base.empty() || out.token.empty() || space.empty() || job.empty())
    return Status::failure(Code::device, "the sandbox has no gateway");
  if (Status s = is_safe_for_keys(base); !s.ok()) return s.after("the sandbox's gateway ");
  out.base = join(base, "/", url_escaped(space), "/", url_escaped(job));
  known_[sandbox] = out;
  return Status::good();
}

Status PrimeGateway::call(const std::string& sandbox, const WebCall& part, bool repeatable, double limit_s,
                          WebReply& reply, Status (*judge)(const WebReply&, bool& missing)) {
  const Clock::time_point start = Clock::now();
  bool fresh = false;
  for (int attempt = 0;; ++attempt) {
    const double left = limit_s - seconds_since(start);
    Access access;
    if (Status s = this->access(sandbox, access, std::clamp(left, 0.5, 30.0)); !s.ok()) return s;
    WebCall web = part;
    web.url = access.base + part.url;
    web.headers.push_back("Authorization: Bearer " + access.token);
    web.limit_s = std::max(left, 0.5);
    Status s = web_call(web, reply);
    bool missing = false;
    if (s.ok() && reply.code == 401 && !fresh) {
      known_.erase(sandbox), fresh = true;
      continue;
    }
    if (s.ok()) s = judge(reply, missing);
    if (s.ok()) return s;
    // A gateway learns of a sandbox a little later than the sandbox runs, and refuses until then.
    const bool undone = missing || !reply.sent || reply.code == 429;
    constexpr int kMostAttempts = 5;
    if ((!repeatable && !undone) || attempt + 1 >= kMostAttempts || limit_s - seconds_since(start) < 1) return s;
    std::this_thread::sleep_for(std::chrono::milliseconds(200 << attempt));
  }
}

Status PrimeGateway::run(const std::string& sandbox, const Command& command, CommandOutput& out) {
  WebCall web{.method = "POST", .url = "/command_session.CommandSession/Start",
              .headers = {"Content-Type: application/connect+proto", "Connect-Protocol-Version: 1",
                          join("Connect-Timeout-Ms: ", int64_t(command.limit_s * 1000))}};
  web.body = start_request({"/bin/sh", "-c", command.script});
  WebReply reply;
  if (Status s = call(sandbox, web, command.repeatable, command.limit_s + 2, reply, judge_stream); !s.ok()) return s;
  bool missing = false;
  return read_stream(reply.body, out, missing);
}

Status PrimeGateway::upload(const std::string& sandbox, const std::string& from, const std::string& to,
                            double limit_s) {
  // The boundary is a text that no archive contains by chance.
  constexpr std::string_view kBoundary = "attune-5f1c7b0e9d3a4826-part";
  WebCall web{.method = "POST",
              .url = join("/upload?path=", url_escaped(to), "&sandbox_id=", url_escaped(sandbox)),
              .headers = {join("Content-Type: multipart/form-data; boundary=", kBoundary)}};
  std::string name = std::filesystem::path(to).filename().string();
  std::erase_if(name, [](char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' '; });
  web.body = join("--", kBoundary, "\r\nContent-Disposition: form-data; name=\"file\"; filename=\"", name,
                  "\"\r\nContent-Type: application/octet-stream\r\n\r\n");
  web.file = from;
  web.after = join("\r\n--", kBoundary, "--\r\n");
  WebReply reply;
  return call(sandbox, web, true, limit_s, reply, judge_upload);
}

}  // namespace attune
