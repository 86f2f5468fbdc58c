"""The pages for people: what the node, its buckets, its readers and its cluster do, and orders to them.

`UiPages` lists the routes. Each page has a module that renders its content from the running node: `overview`,
`bucket_page`, `document_page`, `reader_page`, `cluster_page`, `fault_page`. `frame` puts a content into the frame that
all pages share, and serves the files in `static`; `markup` makes tables, tiles and texts, and escapes what comes from
clients; `readers` groups DCP connections by client.

All content is rendered here, so that it can be read without scripts. The scripts load a page again and replace what
changed, turn counters into rates and plots, sort and filter tables, and send orders. Orders go to the pages of the REST
API, which check the rights; the pages here change nothing.
"""

from dcpstream.node.http.ui.pages import UiPages

__all__ = ["UiPages"]
