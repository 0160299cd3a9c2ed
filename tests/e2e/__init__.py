"""The commands as a person uses them: real files in, exit codes, messages and files out."""
