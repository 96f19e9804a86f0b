#include "completion.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::cli {

namespace {

std::string line_for(const Option& option) {
  std::string text = "complete -c ddrun -n __ddrun_own_part";
  for (const char letter : option.shorts) text += concat(" -s ", letter);
  text += concat(" -l ", option.name);
  if (option.kind == Kind::file) text += " -r -F";
  else if (option.kind == Kind::directory) text += " -x -a '(__fish_complete_directories (commandline -ct))'";
  else if (option.takes_value()) text += " -x";
  if (option.name == "export") text += " -a '(set -xn)'";
  if (option.name == "signals-to-handle") text += concat(" -a '(__fish_append , ", signal_words, ")'");
  if (!option.choices.empty()) text += concat(" -a '", option.choices, "'");
  return text + concat(" -d ", single_quoted(escaped(short_help(option), "\\"), "\\'"), "\n");
}

}  // namespace

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

function __ddrun_asks_store
    set -l words (commandline -opc)
    test (count $words) -gt 1; and test $words[2] = store
end

function __ddrun_coordinates
    set -l words (commandline -opc)
    test (count $words) -gt 1; and test $words[2] = rendezvous
end

function __ddrun_makes_secret
    set -l words (commandline -opc)
    test (count $words) -gt 1; and test $words[2] = secret
end

function __ddrun_first_word
    test (count (commandline -opc)) -eq 1
end

complete -c ddrun -n __ddrun_first_word -a 'config completion env help rendezvous secret store version'
complete -c ddrun -n __ddrun_own_part -a '(__fish_complete_command)'
complete -c ddrun -n '__fish_seen_subcommand_from config' -n __ddrun_own_part -a show
complete -c ddrun -n '__fish_seen_subcommand_from config' -n __ddrun_own_part -l json
complete -c ddrun -n '__fish_seen_subcommand_from help' -f -a 'completion config env rendezvous secret store version'
complete -c ddrun -n '__fish_seen_subcommand_from completion' -x -a 'bash zsh fish'
complete -c ddrun -n '__fish_seen_subcommand_from env' -n __ddrun_own_part -l json
complete -c ddrun -n __ddrun_makes_secret -f -a 'new --print'
complete -c ddrun -n __ddrun_coordinates -f -a '--port= --bind= --secret-file= --insecure'
complete -c ddrun -n __ddrun_coordinates -f -a '--heartbeat-interval= --heartbeat-misses= --stats'
complete -c ddrun -n __ddrun_asks_store -f -a 'get set add wait list del'
complete -c ddrun -n __ddrun_asks_store -f -a '--server= --timeout= --prefix= --raw --port= --bind= --max-memory= --stats'
)");
  for (const Option* option : all_options()) text += line_for(*option);
  return text;
}

}  // namespace ddrun::cli
