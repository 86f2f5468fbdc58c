/* The native kernel of dcpstream: one compiled module of several files, each of which does the work of one package.
 *
 * frames.c    finds and decodes frames, for dcpstream.arrow
 * table.c     makes the columns of a table of changes, for dcpstream.arrow
 * walk.c      follows the messages of all streams of a receive, for dcpstream.client
 * runs.c      finds the runs of streams among decoded rows, for dcpstream.client
 * changes.c   makes single changes of decoded columns, for dcpstream.client
 * kv.c        makes requests of many documents, and cuts answers, for dcpstream.client
 * requests.c  answers plain requests, for dcpstream_node
 * blocks.c    selects and copies frames for readers, for dcpstream_node.store and dcpstream.wire
 * json.c      decides whether a text is JSON
 * snappy.c    inflates values that clients compressed
 *
 * Each function has a twin in plain Python, which is the definition of what is right; tests compare the two. It uses
 * Python's stable interface of 3.11, so one build serves all later versions.
 */

#include "kernel.h"

static PyMethodDef methods[] = {
    {"scan", kernel_scan, METH_VARARGS, kernel_scan_doc},
    {"decode", kernel_decode, METH_VARARGS, kernel_decode_doc},
    {"walk", kernel_walk, METH_VARARGS, kernel_walk_doc},
    {"settle", kernel_settle, METH_VARARGS, kernel_settle_doc},
    {"reached", kernel_reached, METH_VARARGS, kernel_reached_doc},
    {"table", kernel_table, METH_VARARGS, kernel_table_doc},
    {"runs", kernel_runs, METH_VARARGS, kernel_runs_doc},
    {"changes", kernel_changes, METH_VARARGS, kernel_changes_doc},
    {"answer", kernel_answer, METH_VARARGS, kernel_answer_doc},
    {"select_rows", kernel_select_rows, METH_VARARGS, kernel_select_rows_doc},
    {"cut", kernel_cut, METH_VARARGS, kernel_cut_doc},
    {"mark", kernel_mark, METH_VARARGS, kernel_mark_doc},
    {"writes", kernel_writes, METH_VARARGS, kernel_writes_doc},
    {"reads", kernel_reads, METH_VARARGS, kernel_reads_doc},
    {"answers", kernel_answers, METH_VARARGS, kernel_answers_doc},
    {"results", kernel_results, METH_VARARGS, kernel_results_doc},
    {"is_json", kernel_is_json, METH_O, kernel_is_json_doc},
    {NULL, NULL, 0, NULL},
};

enum {
    /* Rises with each change of what a function takes or gives. dcpstream.runtime.kernel has the same number. */
    INTERFACE = 12,
};

static int begin(PyObject *module) {
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0 ? -1 : requests_begin(module);
}

static void end(void *module) { requests_end(module); }

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)begin}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "dcpstream._kernel",
    .m_doc = "The native kernel of dcpstream, see native/module.c.",
    .m_methods = methods,
    .m_slots = slots,
    .m_free = end,
};

PyMODINIT_FUNC PyInit__kernel(void);

PyMODINIT_FUNC PyInit__kernel(void) {
    definition.m_size = (Py_ssize_t)requests_state_bytes();
    return PyModuleDef_Init(&definition);
}
