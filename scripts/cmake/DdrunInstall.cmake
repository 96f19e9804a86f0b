# Manual page, completions and documents; programs are installed where they are declared.
