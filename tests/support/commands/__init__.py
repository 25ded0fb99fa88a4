"""The command line, pipelines and MCP's tools, as tests call them."""
