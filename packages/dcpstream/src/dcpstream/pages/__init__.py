"""Parts of pages for people, which the node and the monitor of pipelines serve.

`frame` puts a content into the frame that all pages share, and has their files, which lie in `static`, and the headers
of answers. `markup` makes tables, tiles and texts, and escapes what others chose; `plots` makes the places of live
plots, and `forms` those of orders. `hosts` distinguishes the server's own names from foreign ones.

All content is rendered where it is served, so that it can be read without scripts. The scripts load a page again and
replace what changed, turn counts into rates and plots, sort and filter tables, and send orders. They load nothing from
elsewhere.
"""
