#include "completion.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::cli {

namespace {

std::string value_action(const Option& option) {
  if (option.name == "export") return "_parameters -g '*export*'";
  if (option.name == "signals-to-handle") return concat("_values -s , signal ", signal_words);
  switch (option.kind) {
    case Kind::file: return "_files";
    case Kind::directory: return "_files -/";
    default: return option.choices.empty() ? std::string(" ") : concat("(", option.choices, ")");
  }
}

/// One line for _arguments: '(-n --nproc-per-node)'{-n+,--nproc-per-node=}'[help]:value:action'
std::string specification(const Option& option) {
  const bool repeatable = option.kind == Kind::count || option.kind == Kind::assignments;
  const std::string name = concat("--", option.name, option.takes_value() ? "=" : "");
  std::string text = "    ";
  if (option.shorts.empty()) {
    text += concat(repeatable ? "'*'" : "", name);
  } else {
    text += repeatable ? std::string("'*'") : concat("'(-", option.shorts[0], " --", option.name, ")'");
    text += concat("{-", option.shorts[0], option.takes_value() ? "+" : "", ",", name, "}");
  }
  std::string rest = concat("[", escaped(short_help(option), "[]\\"), "]");
  if (option.takes_value()) rest += concat(":", escaped(option.metavar, ":\\"), ":", value_action(option));
  return text + single_quoted(rest, "'\\''");
}

}  // namespace

std::string zsh_completion() {
  std::string text = R"(#compdef ddrun ddrun-allreduce ddrun-etcd
# zsh completion for ddrun; made by: ddrun completion zsh

_ddrun_program() {
  _alternative 'commands:program:_command_names -e' 'files:file:_files'
}

_ddrun() {
  if [[ $service == ddrun-* ]]; then _gnu_generic; return; fi
  if (( CURRENT == 2 )) && [[ $PREFIX != -* ]]; then
    compadd -- config completion env help rendezvous secret store version
    _ddrun_program
    return
  fi
  case $words[2] in
    config)
      if (( CURRENT == 3 )); then compadd -- show; return; fi
      (( CURRENT == 4 )) && compadd -- --json
      shift 2 words
      (( CURRENT -= 2 )) ;;
    env)
      (( CURRENT == 3 )) && compadd -- --json
      shift 1 words
      (( CURRENT -= 1 )) ;;
    help) compadd -- completion config env rendezvous secret store version; return ;;
    completion) compadd -- bash zsh fish; return ;;
    secret)
      if ((CURRENT == 3)); then compadd -- new; else compadd -- --print; fi
      return ;;
    rendezvous)
      compadd -- --port= --bind= --secret-file= --insecure --heartbeat-interval= --heartbeat-misses= --stats
      return ;;
    store)
      ((CURRENT == 3)) && compadd -- get set add wait list del --port= --bind= --max-memory= --stats
      compadd -- --server= --timeout= --prefix= --raw
      return ;;
    version) compadd -- --json; return ;;
  esac
  _arguments -s -S -A '-*' \
)";
  for (const Option* option : all_options()) text += specification(*option) + " \\\n";
  text += R"(    '(-)1:program:_ddrun_program' \
    '*::arguments:_normal'
}

if [ "$funcstack[1]" = _ddrun ]; then
  _ddrun "$@"
else
  compdef _ddrun ddrun ddrun-allreduce ddrun-etcd
fi
)";
  return text;
}

}  // namespace ddrun::cli
