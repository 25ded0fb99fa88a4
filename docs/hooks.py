"""What the docs site has beside the pages in this folder; mkdocs calls it (mkdocs.org/user-guide/configuration/#hooks)."""

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
from generated import PAGES, PARTS, call
from onceward.aws.sqs.queue import LONGEST_WAIT
from onceward.consumers.worker import PAUSES
from onceward.web.webhooks.signatures import TOLERANCE

ROOT = Path(__file__).parents[1]
SHOWN = ("examples", "observability")  # folders whose files become pages, so that links to them work
OUT_OF_DOCS = re.compile(rf"\]\((?:\.\./)+((?:{'|'.join(SHOWN)})/[^)#]+|\w+\.md)\)")
PART = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
NOT_RUN = re.compile(r"^( *)<!-- not run: ([^>]+) -->\n+ *(```\w+)", re.MULTILINE)
ROLE = re.compile(r":(?:class|func|meth|mod|attr|exc|data|obj):<code>~?([^<]*)</code>")
CONSTANTS = {"PAUSES": PAUSES, "LONGEST_WAIT": LONGEST_WAIT, "TOLERANCE": TOLERANCE}  # as defaults of public functions
CONSTANT = re.compile(rf'(<span class="n">|<code>|<autoref [^>]*>)({"|".join(CONSTANTS)})<')
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"
LANGUAGES = {".py": "python", ".sh": "bash", ".yml": "yaml", ".yaml": "yaml", ".json": "json"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, the code that they link to, the examples and the changelog."""
    for name, made in PAGES.items():
        files.append(File.generated(config, name, content=made()))
    for name, text in call.pages().items():
        files.append(File.generated(config, name, content=f"{UNSEARCHED}{text}"))
    for folder in SHOWN:
        for path in sorted((ROOT / folder).iterdir()):
            shown = sorted(path.iterdir()) if path.is_dir() else [path]
            code = [_code(one) for one in shown if one.suffix in LANGUAGES]
            if code:
                name = f"{folder}/{path.name}"
                text = f"{UNSEARCHED}# {name}\n\n" + "\n".join(code)
                files.append(File.generated(config, f"{name}.md", content=text))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "CHANGELOG.md", content=f"{UNSEARCHED}{changes}"))
    return files


def _code(path: Path) -> str:
    """Return a file as a block of code, with its name above it."""
    return f'```{LANGUAGES[path.suffix]} title="{path.name}"\n{path.read_text(encoding="utf-8")}```\n'


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in generated parts, send links to files outside this folder to their pages, and show why tests leave out a block."""
    del config, files
    markdown = PART.sub(lambda part: PARTS[part[1]](), markdown)
    up = "../" * page.file.src_uri.count("/")
    markdown = NOT_RUN.sub(r'\1\3 title="Our tests leave this block out: \2"', markdown)
    return OUT_OF_DOCS.sub(lambda link: f"]({up}{link[1].removesuffix('.md')}.md)", markdown)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show the names that docstrings mark for Sphinx as plain code, and the values of constants in signatures."""
    del config, files
    html = ROLE.sub(r"<code>\1</code>", html)
    if page.file.src_uri == "reference/python.md":
        html = CONSTANT.sub(lambda name: f"{name[1]}{CONSTANTS[name[2]]}<", html)
    return html
