#include "ddrun/base/text.hpp"
#include "ddrun/cli/parse.hpp"
#include "option_table.hpp"

// Completion scripts for three shells: options and values from the option table, subcommands from a list.

namespace ddrun::cli {

namespace {

struct Subcommand {
  std::string_view name;
  std::string_view first_args{};  ///< allowed as its first argument
  std::string_view later_args{};  ///< allowed at any position after it
};

/// `config show` and `env` also take the options of a launch, and --json.
constexpr Subcommand subcommands[] = {
    {"completion", "", "bash zsh fish"},
    {"config", "show schema"},
    {"env"},
    {"help", "completion config env rendezvous secret stacks store version"},
    {"rendezvous", "",
     "--port= --bind= --secret-file= --insecure --heartbeat-interval= --heartbeat-misses= --stats --help"},
    {"secret", "new", "--print"},
    {"stacks", "", "--rank= --all-threads --json --help"},
    {"store", "get set add wait list del --port= --bind= --max-memory= --stats --help",
     "--server= --timeout= --prefix= --raw"},
    {"version", "", "--json"},
};

bool is_file(Kind kind) { return kind == Kind::file || kind == Kind::files; }

/// "completion config …"
std::string subcommand_list() {
  std::string text;
  for (const Subcommand& subcommand : subcommands) text += concat(text.empty() ? "" : " ", subcommand.name);
  return text;
}

/// Suggestions for --signals-to-handle, which accepts others too.
constexpr std::string_view signal_names = "SIGALRM SIGHUP SIGINT SIGQUIT SIGTERM SIGUSR1 SIGUSR2 SIGWINCH";

/// The first clause of an option's help, for a menu.
std::string short_help(const Option& option) {
  const std::string_view help = option.help;
  return std::string(help.substr(0, help.find_first_of(":;(")).substr(0, 70));
}

/// With a backslash before each of `special`.
std::string escaped(std::string_view text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

/// In single quotes; a ' inside is written as `quote`.
std::string single_quoted(std::string_view text, std::string_view quote) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') out += quote;
    else out += c;
  }
  return out + "'";
}

/// "--nproc-per-node|-n": all spellings of the options with a value that match `wanted`.
template <class Predicate>
std::string patterns_of(Predicate wanted) {
  std::string text;
  for (const Option* option : all_options()) {
    if (!option->takes_value() || !wanted(*option)) continue;
    if (!text.empty()) text += '|';
    text += concat("--", option->name);
    for (const char letter : option->shorts) text += concat("|-", letter);
    if (option->shorts.find('n') != std::string_view::npos) text += "|-np";
  }
  return text;
}

// ---- bash

/// Parses the words before the cursor as ddrun does; bash makes `=` a separate word.
constexpr std::string_view bash_walk = R"sh(
_ddrun() {
    local cur=${COMP_WORDS[COMP_CWORD]} word='' want='' prefix='' program=0 i=1 options=$_ddrun_options
    COMPREPLY=()
    if ((COMP_CWORD > 1)); then
        word=$(_ddrun_behind "${COMP_WORDS[1]}")
        if [[ -n $word ]]; then
            mapfile -t COMPREPLY < <(compgen -W "$word" -- "$cur")
            return
        fi
        case ${COMP_WORDS[1]} in
            config) i=3 options+=' --json' ;;
            env) i=2 options+=' --json' ;;
        esac
    fi
    for ((; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $word == '=' ]]; then continue; fi
        if [[ -n $want ]]; then want=''; continue; fi
        case $word in
            --) program=1; ((i++)); break ;;
            --*=*) ;;
            -*) want=$(_ddrun_wants "$word") ;;
            *) program=1; break ;;
        esac
    done
    if ((program)); then
        if ((i == COMP_CWORD)); then _ddrun_program "$cur"; else _ddrun_files -f "$cur"; fi
        return
    fi
    if [[ $cur == '=' ]]; then
        cur=''
    elif [[ -z $want && $cur == --*=* ]]; then
        want=$(_ddrun_wants "${cur%%=*}") prefix=${cur%%=*}= cur=${cur#*=}
    fi
    if [[ -n $want ]]; then
        _ddrun_value "$want" "$cur"
        COMPREPLY=("${COMPREPLY[@]/#/$prefix}")
    elif [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "${cur//_/-}")
    else
        _ddrun_program "$cur"
    fi
}

_ddrun_files() {
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen "$1" -- "$2")
}

_ddrun_program() {
    compopt -o filenames 2>/dev/null
    compopt -o nosort 2>/dev/null  # of bash 4.4
    mapfile -t COMPREPLY < <({
        ((COMP_CWORD > 1)) || compgen -W "$_ddrun_words" -- "$1"
        { [[ -z $1 || $1 == */* ]] || _ddrun_commands "$1"; compgen -f -- "$1"; } | sort -u
    } | awk '!seen[$0]++')
}

# Files in PATH, and what the shell has of its own only if there is a file of that name too.
_ddrun_commands() {
    local name
    compgen -c -- "$1" | grep -vxF -f <(compgen -A builtin -A keyword -A alias -A function -- "$1")
    compgen -A builtin -A keyword -A alias -A function -- "$1" | while read -r name; do
        if type -P -- "$name" >/dev/null; then printf '%s\n' "$name"; fi
    done
}

_ddrun_by_help() {
    local cur=${COMP_WORDS[COMP_CWORD]}
    COMPREPLY=()
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$1" --help 2>/dev/null | grep -o -- '--[a-z][a-z_-]*[a-z]=\?' | sort -u)" -- "$cur")
    else
        _ddrun_files -f "$cur"
    fi
}
)sh";

std::string bash_completion() {
  std::string text = "# bash completion for ddrun; made by: ddrun completion bash\n\n_ddrun_options='";
  for (const Option* option : all_options()) text += concat(text.back() == '\'' ? "" : " ", "--", option->name);
  text +=
      "'\n\n# The option itself if it takes a value from the next word.\n_ddrun_wants() {\n    case ${1//_/-} in\n     "
      "   ";
  text += patterns_of([](const Option&) { return true; });
  text += ") printf '%s' \"${1//_/-}\" ;;\n    esac\n}\n\n_ddrun_value() {\n    case $1 in\n";
  for (const Option* option : all_options()) {
    if (option->choices.empty() || !option->takes_value()) continue;
    text += concat("        ", patterns_of([&](const Option& other) { return &other == option; }),
                   ") mapfile -t COMPREPLY < <(compgen -W '", option->choices, "' -- \"$2\") ;;\n");
  }
  text += concat(
      "        ", patterns_of([](const Option& option) { return option.name == "export"; }),
      ") mapfile -t COMPREPLY < <(compgen -e -- \"$2\") ;;\n        --signals-to-handle) mapfile -t COMPREPLY < <(",
      "compgen -P \"${2%\"${2##*,}\"}\" -W '", signal_names, "' -- \"${2##*,}\") ;;\n");
  text += concat("        ", patterns_of([](const Option& option) { return is_file(option.kind); }),
                 ") _ddrun_files -f \"$2\" ;;\n");
  text += concat("        ", patterns_of([](const Option& option) { return option.kind == Kind::directory; }),
                 ") _ddrun_files -d \"$2\" ;;\n    esac\n}\n");
  text += concat("\n_ddrun_words='", subcommand_list(), "'\n\n_ddrun_behind() {\n    case $1 in\n");
  for (const Subcommand& subcommand : subcommands) {
    if (subcommand.name == "env") continue;
    text += concat("        ", subcommand.name, ") ((COMP_CWORD == 2)) && printf '%s ' '", subcommand.first_args,
                   "'; printf '%s' '", subcommand.later_args, "' ;;\n");
  }
  text += concat("    esac\n}\n", bash_walk);
  return text + "\ncomplete -F _ddrun ddrun\ncomplete -F _ddrun_by_help ddrun-allreduce\n";
}

// ---- fish

std::string fish_line(const Option& option) {
  std::string text = "complete -c ddrun -n __ddrun_own_part";
  for (const char letter : option.shorts) text += concat(" -s ", letter);
  text += concat(" -l ", option.name);
  if (is_file(option.kind)) text += " -r -F";
  else if (option.kind == Kind::directory) text += " -x -a '(__fish_complete_directories (commandline -ct))'";
  else if (option.takes_value()) text += " -x";
  if (option.name == "export") text += " -a '(set -xn)'";
  if (option.name == "signals-to-handle") text += concat(" -a '(__fish_append , ", signal_names, ")'");
  if (!option.choices.empty()) text += concat(" -a '", option.choices, "'");
  return text + concat(" -d ", single_quoted(escaped(short_help(option), "\\"), "\\'"), "\n");
}

std::string fish_completion() {
  std::string values = patterns_of([](const Option&) { return true; });
  for (char& c : values) {
    if (c == '|') c = ' ';
  }
  std::string text = concat(R"(# fish completion for ddrun; made by: ddrun completion fish

# True until the program's name is complete: what follows it is not ddrun's.
function __ddrun_own_part
    set -l value_options )",
                            values, R"(
    set -l skip 0
    set -l words (commandline -opc)
    for word in $words[2..-1]
        if test $skip = 1
            set skip 0
            continue
        end
        switch $word
            case --
                return 1
            case '-*'
                if contains -- (string replace -a _ - -- $word) $value_options
                    set skip 1
                end
            case config show env
                continue
            case '*'
                return 1
        end
    end
    return 0
end

# Whether the line begins with this one of ddrun's own words.
function __ddrun_behind
    set -l words (commandline -opc)
    test (count $words) -gt 1; and test $words[2] = $argv[1]
end

function __ddrun_first_word
    test (count (commandline -opc)) -eq 1
end

complete -c ddrun -n '__ddrun_own_part; and string length -q -- (commandline -ct)' -a '(__fish_complete_command)'
complete -c ddrun -n '__ddrun_behind config' -n __ddrun_own_part -l json
complete -c ddrun -n '__ddrun_behind env' -n __ddrun_own_part -l json
complete -c ddrun -n __ddrun_first_word -a ')",
                            subcommand_list(), "'\n");
  for (const Subcommand& subcommand : subcommands) {
    if (subcommand.name == "env") continue;
    text +=
        concat("complete -c ddrun -n '__ddrun_behind ", subcommand.name, "'", subcommand.name == "config" ? "" : " -f",
               " -a '", subcommand.first_args, " ", subcommand.later_args, "'\n");
  }
  for (const Option* option : all_options()) text += fish_line(*option);
  return text;
}

// ---- zsh

std::string zsh_action(const Option& option) {
  if (option.name == "export") return "_parameters -g '*export*'";
  if (option.name == "signals-to-handle") return concat("_values -s , signal ", signal_names);
  switch (option.kind) {
    case Kind::file:
    case Kind::files: return "_files";
    case Kind::directory: return "_files -/";
    default: return option.choices.empty() ? std::string(" ") : concat("(", option.choices, ")");
  }
}

/// One line for _arguments: '(-n --nproc-per-node)'{-n+,--nproc-per-node=}'[help]:value:action'
std::string zsh_specification(const Option& option) {
  const bool repeatable = option.kind == Kind::count || is_repeatable(option.kind);
  const std::string name = concat("--", option.name, option.takes_value() ? "=" : "");
  std::string text = "    ";
  if (option.shorts.empty()) {
    text += concat(repeatable ? "'*'" : "", name);
  } else {
    text += repeatable ? std::string("'*'") : concat("'(-", option.shorts[0], " --", option.name, ")'");
    text += concat("{-", option.shorts[0], option.takes_value() ? "+" : "", ",", name, "}");
  }
  std::string rest = concat("[", escaped(short_help(option), "[]\\"), "]");
  if (option.takes_value()) rest += concat(":", escaped(option.metavar, ":\\"), ":", zsh_action(option));
  return text + single_quoted(rest, "'\\''");
}

std::string zsh_completion() {
  std::string text = concat(R"(#compdef ddrun ddrun-allreduce
# zsh completion for ddrun; made by: ddrun completion zsh

_ddrun_program() {
  if [[ -z $PREFIX ]]; then _files; return; fi
  _alternative 'commands:program:_command_names -e' 'files:file:_files'
}

_ddrun() {
  if [[ $service == ddrun-* ]]; then _gnu_generic; return; fi
  if (( CURRENT == 2 )) && [[ $PREFIX != -* ]]; then
    compadd -V words -- )",
                            subcommand_list(), R"(
    _ddrun_program
    return
  fi
  case $words[2] in
    config)
      if (( CURRENT == 3 )); then compadd -- show schema; return; fi
      (( CURRENT == 4 )) && compadd -- --json
      shift 2 words
      (( CURRENT -= 2 )) ;;
    env)
      (( CURRENT == 3 )) && compadd -- --json
      shift 1 words
      (( CURRENT -= 1 )) ;;
)");
  for (const Subcommand& subcommand : subcommands) {
    if (subcommand.name == "config" || subcommand.name == "env") continue;
    text += concat("    ", subcommand.name, ") ");
    if (!subcommand.first_args.empty()) text += concat("((CURRENT == 3)) && compadd -- ", subcommand.first_args, "; ");
    if (!subcommand.later_args.empty()) text += concat("compadd -- ", subcommand.later_args, "; ");
    text += "return ;;\n";
  }
  text += R"(  esac
  _arguments -s -S -A '-*' \
)";
  for (const Option* option : all_options()) text += zsh_specification(*option) + " \\\n";
  text += R"(    '(-)1:program:_ddrun_program' \
    '*::arguments:_normal'
}

if [ "$funcstack[1]" = _ddrun ]; then
  _ddrun "$@"
else
  compdef _ddrun ddrun ddrun-allreduce
fi
)";
  return text;
}

}  // namespace

PrintAndExit completion(std::string_view shell) {
  if (shell == "bash") return stdout_text(bash_completion());
  if (shell == "zsh") return stdout_text(zsh_completion());
  if (shell == "fish") return stdout_text(fish_completion());
  return usage_error(concat("no completion for '", shell, "'; there is one for bash, zsh and fish"));
}

}  // namespace ddrun::cli
