"""A stranger's package: ideas that aiayn does not know, each in one file here and one YAML in ../conf."""
