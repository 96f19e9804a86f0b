#include "completion.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::cli {

std::string short_help(const Option& option) {
  const std::string_view help = option.help;
  return std::string(help.substr(0, help.find_first_of(":;(")).substr(0, 70));
}

std::string escaped(std::string_view text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string single_quoted(std::string_view text, std::string_view quote) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') out += quote;
    else out += c;
  }
  return out + "'";
}

namespace {

/// Walks the words before the cursor as ddrun itself does; `=` is a word of its own to bash.
constexpr std::string_view walk = R"sh(
_ddrun() {
    local cur=${COMP_WORDS[COMP_CWORD]} word='' want='' prefix='' program=0 i=1
    COMPREPLY=()
    case ${COMP_WORDS[1]} in
        config)
            if ((COMP_CWORD == 2)); then
                mapfile -t COMPREPLY < <(compgen -W 'show' -- "$cur")
                return
            fi
            ((COMP_CWORD > 2)) && i=3
            if ((COMP_CWORD == 3)) && [[ $cur == --j* ]]; then
                COMPREPLY=('--json')
                return
            fi
            [[ ${COMP_WORDS[3]} == '--json' ]] && ((COMP_CWORD > 3)) && i=4 ;;
        help)
            if ((COMP_CWORD == 2)); then
                mapfile -t COMPREPLY < <(compgen -W 'completion config env rendezvous secret store version' -- "$cur")
                return
            fi ;;
        env)
            if ((COMP_CWORD > 1)); then
                i=2
                mapfile -t COMPREPLY < <(compgen -W '--json' -- "$cur")
                if ((COMP_CWORD == 2 && ${#COMPREPLY[@]} == 1)); then return; fi
                [[ ${COMP_WORDS[2]} == '--json' ]] && ((COMP_CWORD > 2)) && i=3
            fi ;;
        completion)
            if ((COMP_CWORD > 1)); then
                mapfile -t COMPREPLY < <(compgen -W 'bash zsh fish' -- "$cur")
                return
            fi ;;
        version)
            if ((COMP_CWORD > 1)); then
                mapfile -t COMPREPLY < <(compgen -W '--json' -- "$cur")
                return
            fi ;;
        secret)
            if ((COMP_CWORD == 2)); then
                mapfile -t COMPREPLY < <(compgen -W 'new' -- "$cur")
                return
            elif ((COMP_CWORD > 2)); then
                mapfile -t COMPREPLY < <(compgen -W '--print' -- "$cur")
                return
            fi ;;
        rendezvous)
            if ((COMP_CWORD > 1)); then
                word='--port= --bind= --secret-file= --insecure --heartbeat-interval= --heartbeat-misses= --stats'
                mapfile -t COMPREPLY < <(compgen -W "$word --help" -- "$cur")
                return
            fi ;;
        store)
            if ((COMP_CWORD > 1)); then
                word='--server= --timeout= --prefix= --raw'
                if ((COMP_CWORD == 2)); then
                    word+=' get set add wait list del --port= --bind= --max-memory= --stats --help'
                fi
                mapfile -t COMPREPLY < <(compgen -W "$word" -- "$cur")
                return
            fi ;;
    esac
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
        mapfile -t COMPREPLY < <(compgen -W "$_ddrun_options" -- "${cur//_/-}")
    else
        _ddrun_program "$cur"
        if ((COMP_CWORD == 1)); then
            mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -W 'config completion env help rendezvous secret store version' -- "$cur")
        fi
    fi
}

_ddrun_files() {
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen "$1" -- "$2")
}

_ddrun_program() {
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <({ [[ $1 == */* ]] || _ddrun_commands "$1"; compgen -f -- "$1"; } | sort -u)
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

}  // namespace

std::string bash_completion() {
  std::string text = "# bash completion for ddrun; made by: ddrun completion bash\n\n_ddrun_options='";
  for (const Option* option : all_options()) text += concat(text.back() == '\'' ? "" : " ", "--", option->name);
  text +=
      "'\n\n# The option itself if it takes a value from the next word.\n_ddrun_wants() {\n    case ${1//_/-} in\n     "
      "   ";
  text += patterns_of([](const Option&) { return true; });
  text += ") printf '%s' \"${1//_/-}\" ;;\n    esac\n}\n\n_ddrun_value() {\n    case $1 in\n";
  for (const Option* option : all_options()) {
    if (option->choices.empty()) continue;
    text += concat("        ", patterns_of([&](const Option& other) { return &other == option; }),
                   ") mapfile -t COMPREPLY < <(compgen -W '", option->choices, "' -- \"$2\") ;;\n");
  }
  text += concat(
      "        ", patterns_of([](const Option& option) { return option.name == "export"; }),
      ") mapfile -t COMPREPLY < <(compgen -e -- \"$2\") ;;\n        --signals-to-handle) mapfile -t COMPREPLY < <(",
      "compgen -P \"${2%\"${2##*,}\"}\" -W '", signal_words, "' -- \"${2##*,}\") ;;\n");
  text += concat("        ", patterns_of([](const Option& option) { return option.kind == Kind::file; }),
                 ") _ddrun_files -f \"$2\" ;;\n");
  text += concat("        ", patterns_of([](const Option& option) { return option.kind == Kind::directory; }),
                 ") _ddrun_files -d \"$2\" ;;\n    esac\n}\n");
  text += walk;
  return text + "\ncomplete -F _ddrun ddrun\ncomplete -F _ddrun_by_help ddrun-allreduce ddrun-etcd\n";
}

}  // namespace ddrun::cli
