"""The pages for people: what the node, its buckets, its readers and its cluster do, and orders to them.

`UiPages` lists the routes; `error_page` stands in for a page that cannot be shown. Each page has a module that renders
its content from the running node: `overview`, `bucket_page`, `document_page`, `reader_page`, `cluster_page`,
`fault_page`. `frame` puts a content into the node's frame; `readers` groups DCP connections by client. What pages are
made of, and their scripts, are in `dcpstream.pages`.

Orders go to the pages of the REST API, which check the rights; the pages here change nothing.
"""

from dcpstream_node.rest.ui.frame import error_page, is_page
from dcpstream_node.rest.ui.pages import UiPages

__all__ = ["UiPages", "error_page", "is_page"]
