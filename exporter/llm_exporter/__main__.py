"""`python -m llm_exporter` is the command `llm-exporter`."""

from llm_exporter.cli import main

if __name__ == "__main__":
    main()
