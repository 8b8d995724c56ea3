#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The steps of a speed gate, the same on GitHub, GitLab and a desk; docs/guides/ci.md explains them.
#
#   ci/speed.sh measure   [--before CHECKOUT] [--after CHECKOUT] [--runs N] -- OPTIONS OF attune bench
#   ci/speed.sh compare   [--subject NAME] [--margin PERCENT] [--unclear fail]
#   ci/speed.sh post                                  the comment, to the pull request or merge request
#   ci/speed.sh remember  [--keep N]                  the records and the baseline, on the branch attune-records
#   ci/speed.sh trends                                OUT/site/index.html, from that branch
#   ci/speed.sh threshold --between A,B --yaml FILE [--key LIST]     a changed threshold, as a pull request
#
# --attune PROGRAM is a program, or a path inside each checkout (default attune). --out FOLDER has what the steps hand
# to each other: before.jsonl, after.jsonl, compare.md, compare.xml, comment.md, site/ (default build/speed).
# Exit codes: 0 good, 1 slower or broken, 2 wrong usage, 3 the machine, 4 unclear with --unclear fail.
set -euo pipefail

attune=attune out=build/speed before='' after=. runs=5 subject='' margin=1 unclear=warn keep=200 between='' yaml=''
key=''
branch=attune-records proposal=attune-thresholds mark='<!-- attune speed -->'

no() {
  echo "speed: $1" >&2
  exit "${2:-2}"
}

step=${1:-}
case $step in
  measure | compare | post | remember | trends | threshold) shift ;;
  *) no "'$step' is not a step; the steps are measure, compare, post, remember, trends and threshold" ;;
esac
while [ $# -gt 0 ]; do
  case $1 in
    --) shift && break ;;
    --attune | --out | --before | --after | --runs | --subject | --margin | --unclear | --keep | --between | --yaml | \
      --key)
      [ $# -ge 2 ] || no "$1 has no value"
      printf -v "${1#--}" %s "$2" && shift 2 ;;
    *) no "'$1' is not an option; options of attune bench come after --" ;;
  esac
done
case $runs in *[!0-9]* | 0 | '') no "--runs is '$runs', not a number from 1 on" ;; esac
case $keep in *[!0-9]* | 0 | '') no "--keep is '$keep', not a number from 1 on" ;; esac
case $unclear in warn | fail) ;; *) no "--unclear is '$unclear', not one of warn, fail" ;; esac
mkdir -p "$out"
out=$(cd "$out" && pwd)

# The program that measures a checkout.
program() {
  case $attune in
    /*) echo "$attune" ;;
    */*) [ -x "$1/$attune" ] || no "'$1/$attune' is not a program; build it first, or give --attune PROGRAM" 3
         (cd "$1" && echo "$PWD/$attune") ;;
    *) command -v "$attune" || no "'$attune' is not on the path; give --attune PROGRAM" 3 ;;
  esac
}

git_here() { git -C "$after" "$@"; }

# Fetches a branch of origin; false if it does not exist there.
fetched() {
  local code=0
  git_here ls-remote -q --exit-code origin "refs/heads/$1" > /dev/null || code=$?
  [ "$code" != 2 ] || return 1
  [ "$code" = 0 ] || no "the remote 'origin' of '$after' cannot be read; give its checkout the right to" 3
  git_here fetch -q --depth 1 origin "+refs/heads/$1:refs/remotes/origin/$1"
}

name_git() {
  git -C "$1" config user.name > /dev/null || git -C "$1" config user.name "attune speed"
  git -C "$1" config user.email > /dev/null || git -C "$1" config user.email "attune-speed@localhost"
}

# ---- measure: base and change in turn, so that what drifts meets both

run_once() {  # CHECKOUT FILE OPTIONS...
  local checkout=$1 file=$2 tool code=0
  shift 2
  tool=$(program "$checkout")
  (cd "$checkout" && "$tool" bench "$@" --out "$file") || code=$?
  [ "$code" -le 1 ] || exit "$code"  # 1: a row is wrong, which compare calls BROKEN
}

measure() {
  [ $# -gt 0 ] || no "there are no options of attune bench after --, such as -- --suite regress"
  rm -f "$out/before.jsonl" "$out/after.jsonl"
  local turn
  for ((turn = 1; turn <= runs; ++turn)); do
    echo "speed: turn $turn of $runs"
    if [ -n "$before" ]; then run_once "$before" "$out/before.jsonl" "$@"; fi
    run_once "$after" "$out/after.jsonl" "$@"
  done
}

# ---- compare: with the base of this run, else with the stored baseline

only_subject() {  # FILE: records of one subject, which then decides; without --subject the file itself
  if [ -z "$subject" ]; then echo "$1" && return; fi
  python3 - "$1" "$subject" > "$1.only" << 'EOF'
import json, sys
name = sys.argv[2].rpartition("/")[2]  # records name a library without its folder
lines = [l for l in open(sys.argv[1]) if json.loads(l)["subject"] == name]
if not lines:
    sys.exit("speed: %s: no record of subject '%s'" % (sys.argv[1], sys.argv[2]))
sys.stdout.writelines(lines)
EOF
  echo "$1.only"
}

compare() {
  local tool old new code=0 against="the base, measured in turn on one machine"
  tool=$(program "$after")
  [ -s "$out/after.jsonl" ] || no "'$out/after.jsonl' holds no records; run the step measure first" 3
  rm -f "$out/compare.md" "$out/compare.xml"
  if [ ! -s "$out/before.jsonl" ] && fetched "$branch"; then
    git_here show "origin/$branch:baseline.jsonl" > "$out/before.jsonl" || rm -f "$out/before.jsonl"
    against="the stored baseline: another run, perhaps another machine"
  fi
  if [ ! -s "$out/before.jsonl" ]; then
    echo "No baseline is stored yet, so nothing was compared." > "$out/compare.md"
    code=4
  else
    old=$(only_subject "$out/before.jsonl")
    new=$(only_subject "$out/after.jsonl")
    "$tool" compare "$old" "$new" --margin "$margin" --markdown "$out/compare.md" --junit "$out/compare.xml" \
      ${GITHUB_ACTIONS:+--github} || code=$?
    [ -s "$out/compare.md" ] || exit "$code"
  fi
  local words=("faster or the same" "slower or broken" "" "" "unclear")
  { echo "$mark" && echo "### Speed: ${words[$code]}" && echo
    echo "Compared with $against." && echo
    head -c 60000 "$out/compare.md" && echo; } > "$out/comment.md"
  [ -z "${GITHUB_STEP_SUMMARY:-}" ] || cat "$out/comment.md" >> "$GITHUB_STEP_SUMMARY"
  if [ "$code" = 4 ] && [ "$unclear" = warn ]; then
    echo "speed: unclear: the measurements do not answer; --unclear fail makes this an error"
    code=0
  fi
  exit "$code"
}

# ---- post: one comment per pull request, written anew

post() {
  [ -s "$out/comment.md" ] || no "'$out/comment.md' is not there; run the step compare first" 3
  local old
  if [ -n "${GITHUB_ACTIONS:-}" ]; then
    local notes="repos/$GITHUB_REPOSITORY/issues/${ATTUNE_PULL_REQUEST:?the number of the pull request}/comments"
    old=$(gh api --paginate "$notes" --jq ".[] | select(.body | startswith(\"$mark\")) | .id" | head -1)
    if [ -n "$old" ]; then gh api -X PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$old" -F "body=@$out/comment.md"
    else gh api "$notes" -F "body=@$out/comment.md"; fi > /dev/null
  elif [ -n "${GITLAB_CI:-}" ]; then
    local notes="$CI_API_V4_URL/projects/$CI_PROJECT_ID/merge_requests/$CI_MERGE_REQUEST_IID/notes"
    local head="PRIVATE-TOKEN: ${ATTUNE_GITLAB_TOKEN:?a project token with the scope api}"
    old=$(curl -fsS --header "$head" "$notes?per_page=100" |
      python3 -c 'import json, sys
print(*(n["id"] for n in json.load(sys.stdin) if n["body"].startswith(sys.argv[1])), sep="\n")' "$mark" | head -1)
    curl -fsS --header "$head" ${old:+-X PUT} --data-urlencode "body@$out/comment.md" "$notes${old:+/$old}" > /dev/null
  else
    cat "$out/comment.md"
  fi
}

# ---- remember and trends: one branch with one commit, so that old records do not pile up in its history

branch_tree() {  # BRANCH: a work tree of it in $tree
  tree=$(mktemp -d) && trap 'git_here worktree remove -f "$tree" 2> /dev/null || true; rm -rf "$tree"' EXIT
  if fetched "$1"; then
    git_here worktree add -q -f --detach "$tree" "origin/$1"
  else
    git_here worktree add -q -f --detach "$tree" HEAD && git -C "$tree" checkout -q --orphan "new-$1-$$" &&
      git -C "$tree" rm -rfq .
  fi
  name_git "$tree"
}

remember() {
  [ -s "$out/after.jsonl" ] || no "'$out/after.jsonl' holds no records; run the step measure first" 3
  branch_tree "$branch"
  mkdir -p "$tree/records"
  cp "$out/after.jsonl" "$tree/records/$(date -u +%Y%m%dT%H%M%SZ)_$(git_here rev-parse --short=12 HEAD).jsonl"
  cp "$out/after.jsonl" "$tree/baseline.jsonl"
  local all=("$tree"/records/*.jsonl)
  while [ ${#all[@]} -gt "$keep" ]; do rm "${all[0]}" && all=("${all[@]:1}"); done
  git -C "$tree" add -A
  local parentless
  parentless=$(git -C "$tree" commit-tree "$(git -C "$tree" write-tree)" -m "records: keep ${#all[@]} runs")
  git_here push -q --force-with-lease origin "$parentless:refs/heads/$branch"
  echo "speed: the branch $branch has ${#all[@]} runs and the baseline of $(git_here rev-parse --short=12 HEAD)"
}

trends() {
  local tool
  tool=$(program "$after")
  branch_tree "$branch"
  [ -d "$tree/records" ] || no "the branch $branch holds no records; the step remember makes it" 3
  rm -rf "$out/site" "$out/records.db" && mkdir -p "$out/site"
  "$tool" store "$tree"/records/*.jsonl --db "$out/records.db"
  "$tool" history --db "$out/records.db" --html "$out/site/index.html" > "$out/site/trends.txt"
  echo "speed: $out/site/index.html"
}

# ---- threshold: what the records say, as a change of a file that people review

threshold() {
  if [ -z "$between" ] || [ -z "$yaml" ]; then no "threshold needs --between A,B and --yaml FILE"; fi
  [ -s "$out/after.jsonl" ] || no "'$out/after.jsonl' holds no records; run the step measure first" 3
  local tool base said="$out/threshold.txt"
  tool=$(program "$after")
  (cd "$after" && "$tool" tune "$out/after.jsonl" --between "$between" --yaml "$yaml" ${key:+--key "$key"}) |
    tee "$said"
  if git_here diff --quiet -- "$yaml" && git_here ls-files --error-unmatch -- "$yaml" > /dev/null 2>&1; then
    echo "speed: $yaml stays as it is" && return
  fi
  name_git "$after"
  base=$(git_here rev-parse HEAD)
  git_here add -- "$yaml"
  git_here commit -q -m "${yaml##*/}: set thresholds by measurement" -m "$(head -c 4000 "$said")" -- "$yaml"
  local push=(push -q --force origin "HEAD:refs/heads/$proposal")
  if [ -n "${GITLAB_CI:-}" ]; then
    push=(push -q --force -o merge_request.create -o "merge_request.title=Thresholds by measurement" origin
      "HEAD:refs/heads/$proposal")
  fi
  git_here "${push[@]}"
  git_here reset -q --hard "$base" && git_here clean -q -f -- "$yaml.before"
  local count=".[].number"
  if [ -n "${GITHUB_ACTIONS:-}" ] && [ -z "$(gh pr list --head "$proposal" --state open --json number --jq "$count")" ]
  then
    { echo '```text' && head -c 60000 "$said" && echo '```'; } > "$out/proposal.md"
    gh pr create --head "$proposal" --title "Thresholds by measurement" --body-file "$out/proposal.md"
  fi
  echo "speed: the branch $proposal changes $yaml"
}

"$step" "$@"
