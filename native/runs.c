/* For dcpstream.client: finds the runs of streams among decoded rows.
 *
 * `runs` does in one pass what the rows of plain Python do in several (dcpstream.client.machine.connection.rows): it
 * cuts the rows where the stream changes and where another message stood between them, and finds the rows that do not
 * follow the row before them in their stream.
 */

#include "kernel.h"

static const uint32_t NOBODY = UINT32_MAX;

typedef struct {
    const uint8_t *opaques, *seqnos, *vbuckets; /* u32, u64, u16 each */
    const uint8_t *owners;                      /* u32 each, NOBODY for rows in runs; NULL if all rows are */
    Py_ssize_t rows;
} Rows;

INLINE uint32_t opaque_at(const Rows *r, Py_ssize_t row) {
    uint32_t number;
    memcpy(&number, r->opaques + (size_t)row * sizeof(number), sizeof(number));
    return number;
}

INLINE uint64_t seqno_at(const Rows *r, Py_ssize_t row) {
    uint64_t number;
    memcpy(&number, r->seqnos + (size_t)row * sizeof(number), sizeof(number));
    return number;
}

INLINE uint16_t vbucket_at(const Rows *r, Py_ssize_t row) {
    uint16_t number;
    memcpy(&number, r->vbuckets + (size_t)row * sizeof(number), sizeof(number));
    return number;
}

/* Whether a row is in no run, because a walk has taken it (walk.c). */
INLINE int is_taken(const Rows *r, Py_ssize_t row) {
    uint32_t owner = NOBODY;
    if (r->owners)
        memcpy(&owner, r->owners + (size_t)row * sizeof(owner), sizeof(owner));
    return owner != NOBODY;
}

/* Append an object that is owned; false with an error. */
static int append(PyObject *list, PyObject *owned) {
    int status = owned ? PyList_Append(list, owned) : -1;
    Py_XDECREF(owned);
    return status == 0;
}

static int append_run(const Rows *r, PyObject *runs, PyObject *edges, Py_ssize_t first, Py_ssize_t stop) {
    return append(runs, Py_BuildValue("nnk", first, stop, (unsigned long)opaque_at(r, first))) &&
           append(edges, Py_BuildValue("iKK", (int)vbucket_at(r, first), (unsigned long long)seqno_at(r, first),
                                       (unsigned long long)seqno_at(r, stop - 1)));
}

/* The row before which the next other message stood; the number of rows if there is none, -1 with an error. */
static Py_ssize_t next_cut(PyObject *others, Py_ssize_t *place, Py_ssize_t after, Py_ssize_t rows) {
    while (*place < PyList_Size(others)) {
        PyObject *pair = PyList_GetItem(others, (*place)++);
        if (!PyTuple_Check(pair) || PyTuple_Size(pair) < 1) {
            PyErr_SetString(PyExc_ValueError, "a message without its place");
            return -1;
        }
        Py_ssize_t row = PyLong_AsSsize_t(PyTuple_GetItem(pair, 0));
        if (row == -1 && PyErr_Occurred())
            return -1;
        if (row > after && row < rows)
            return row;
    }
    return rows;
}

static int find(const Rows *r, PyObject *others, PyObject *runs, PyObject *edges, PyObject *unordered,
                PyObject *strays) {
    Py_ssize_t first = -1, place = 0, cut = next_cut(others, &place, 0, r->rows);
    if (cut < 0)
        return 0;
    for (Py_ssize_t row = 0; row < r->rows; row++) {
        int is_cut = row == cut;
        if (UNLIKELY(is_cut) && (cut = next_cut(others, &place, row, r->rows)) < 0)
            return 0;
        if (is_taken(r, row)) {
            if (first >= 0 && !append_run(r, runs, edges, first, row))
                return 0;
            first = -1;
            continue;
        }
        if (first < 0) {
            first = row;
            continue;
        }
        int is_other = opaque_at(r, row) != opaque_at(r, row - 1);
        if (UNLIKELY(!is_other && seqno_at(r, row) <= seqno_at(r, row - 1)) &&
            !append(unordered, PyLong_FromSsize_t(row)))
            return 0;
        if (UNLIKELY(!is_other && vbucket_at(r, row) != vbucket_at(r, row - 1)) &&
            !append(strays, PyLong_FromSsize_t(row)))
            return 0;
        if (LIKELY(!is_other && !is_cut))
            continue;
        if (!append_run(r, runs, edges, first, row))
            return 0;
        first = row;
    }
    return first < 0 || append_run(r, runs, edges, first, r->rows);
}

const char kernel_runs_doc[] =
    "runs(rows, opaques, seqnos, vbuckets, others, owners) -> (runs, edges, unordered, strays)\n\n"
    "Cut rows into runs of one stream with no other message between them.\n\n"
    "`others` is a list of tuples that begin with the number of rows before a message, ascending. A row\n"
    "that has another owner than 0xFFFFFFFF is in no run; `owners` are None or uint32 in bytes.\n"
    "Returns: (first row, row after the last, opaque) of each run; (vbucket, first seqno, last seqno) of each; the\n"
    "rows whose seqno is not above that of the row before in their stream; those of another vbucket than it.";

PyObject *kernel_runs(PyObject *Py_UNUSED(module), PyObject *arguments) {
    Py_buffer opaques, seqnos, vbuckets, owners;
    PyObject *others, *lists[4] = {NULL}, *result = NULL;
    Rows r;
    if (!PyArg_ParseTuple(arguments, "ny*y*y*O!z*", &r.rows, &opaques, &seqnos, &vbuckets, &PyList_Type, &others, &owners))
        return NULL;
    r.opaques = opaques.buf;
    r.seqnos = seqnos.buf;
    r.vbuckets = vbuckets.buf;
    r.owners = owners.buf;
    if (r.rows < 0 || r.rows > opaques.len / (Py_ssize_t)sizeof(uint32_t) ||
        r.rows > seqnos.len / (Py_ssize_t)sizeof(uint64_t) || r.rows > vbuckets.len / (Py_ssize_t)sizeof(uint16_t) ||
        (owners.buf && r.rows > owners.len / (Py_ssize_t)sizeof(uint32_t))) {
        PyErr_SetString(PyExc_ValueError, "columns shorter than the number of rows");
        goto done;
    }
    for (int i = 0; i < 4; i++)
        if (!(lists[i] = PyList_New(0)))
            goto done;
    if (find(&r, others, lists[0], lists[1], lists[2], lists[3]))
        result = PyTuple_Pack(4, lists[0], lists[1], lists[2], lists[3]);
done:
    for (int i = 0; i < 4; i++)
        Py_XDECREF(lists[i]);
    PyBuffer_Release(&opaques);
    PyBuffer_Release(&seqnos);
    PyBuffer_Release(&vbuckets);
    PyBuffer_Release(&owners);
    return result;
}
