/* For dcpstream.client: makes single changes of decoded columns, one Python object for each row.
 *
 * `changes` does what `changes_in` does in plain Python (dcpstream.client.machine.reader.changes). A change cannot be
 * modified, so Python fills each of its slots through `object.__setattr__`. Here the slots are written where the class
 * says that they are. What the rows have in common, such as the branch or the name of a collection, is looked up when
 * it differs from that of the row before. Values that are compressed or have attributes are left to Python.
 */

#include "kernel.h"

#include <structmember.h>

enum { OPCODE, COLLECTION, VBUCKET, SEQNO, REV, CAS, FLAGS, DATATYPE, EXPIRY, COLUMNS };
static const size_t WIDTH[COLUMNS] = {1, 4, 2, 8, 8, 8, 4, 1, 4};

enum {
    OP_SLOT,
    KEY_SLOT,
    VALUE_SLOT,
    SCOPE_SLOT,
    COLLECTION_SLOT,
    VBID_SLOT,
    VBUUID_SLOT,
    SEQNO_SLOT,
    REV_SLOT,
    CAS_SLOT,
    FLAGS_SLOT,
    DATATYPE_SLOT,
    EXPIRY_SLOT,
    XATTRS_SLOT,
    RUN_SLOT,
    SLOTS
};
static const char *const NAME[SLOTS] = {"op",    "key",   "value", "scope",    "collection", "vbid",   "vbuuid", "seqno",
                                        "rev",   "cas",   "flags", "datatype", "expiry",     "xattrs", "_run"};

enum {
    OPS = 3,           /* mutation, deletion, expiration: their opcodes are adjacent */
    PACKED = 0x02 | 4, /* datatypes that Python reads: compressed, with attributes */
    VBID_IN_RUN = 0,   /* places in a Run */
    FIRST_IN_RUN = 1,
    STOP_IN_RUN = 2,
    VBUUID_IN_RUN = 3,
};

/* An object made of a number, kept until the number changes. */
typedef struct {
    uint64_t number;
    PyObject *object; /* owned; NULL at first */
} Kept;

typedef struct {
    PyTypeObject *type;
    Py_ssize_t place[SLOTS];
    Py_ssize_t rows;
    const uint8_t *column[COLUMNS], *key, *value;
    const int32_t *key_offsets, *value_offsets;
    const uint8_t *owners; /* uint32 each: the run of each row; NULL if runs have their rows */
    size_t key_bytes, value_bytes;
    PyObject *ops, *names, *vbuuids, *body_of; /* borrowed */
    Kept flags, datatype, expiry, rev, vbid;
    Kept scope;                     /* of a collection's number */
    PyObject *collection, *vbuuid;  /* owned; they change with `scope` and `vbid` */
} Changes;

INLINE uint64_t number_at(const Changes *c, int column, Py_ssize_t row) {
    const uint8_t *at = c->column[column] + (size_t)row * WIDTH[column];
    uint64_t eight;
    uint32_t four;
    uint16_t two;
    switch (WIDTH[column]) {
    case 8:
        memcpy(&eight, at, 8);
        return eight;
    case 4:
        memcpy(&four, at, 4);
        return four;
    case 2:
        memcpy(&two, at, 2);
        return two;
    default:
        return *at;
    }
}

/* The object of a number, borrowed; NULL with an error. */
INLINE PyObject *kept(Kept *one, uint64_t number) {
    if (UNLIKELY(!one->object || one->number != number)) {
        PyObject *fresh = PyLong_FromUnsignedLongLong(number);
        if (!fresh)
            return NULL;
        Py_XDECREF(one->object);
        one->object = fresh;
        one->number = number;
    }
    return one->object;
}

/* Find the names of another collection. */
static int next_names(Changes *c, uint64_t number) {
    PyObject *id = PyLong_FromUnsignedLongLong(number);
    if (!id)
        return -1;
    PyObject *pair = PyDict_GetItemWithError(c->names, id), *scope = NULL, *collection = NULL;
    Py_DECREF(id);
    if (pair && PyTuple_Check(pair) && PyTuple_Size(pair) == 2) {
        scope = Py_NewRef(PyTuple_GetItem(pair, 0));
        collection = Py_NewRef(PyTuple_GetItem(pair, 1));
    } else if (pair) {
        PyErr_SetString(PyExc_ValueError, "names of a collection that are no pair");
    } else if (!PyErr_Occurred()) {
        scope = PyUnicode_FromString("");
        collection = PyUnicode_FromFormat("0x%x", (unsigned)number);
    }
    if (!scope || !collection) {
        Py_XDECREF(scope);
        Py_XDECREF(collection);
        return -1;
    }
    Py_XDECREF(c->scope.object);
    Py_XDECREF(c->collection);
    c->scope.number = number;
    c->scope.object = scope;
    c->collection = collection;
    return 0;
}

/* Find the branch of another vbucket. */
static int next_vbucket(Changes *c, uint64_t number) {
    PyObject *vbid = kept(&c->vbid, number);
    if (!vbid)
        return -1;
    PyObject *found = PyDict_GetItemWithError(c->vbuuids, vbid);
    if (!found && PyErr_Occurred())
        return -1;
    found = found ? Py_NewRef(found) : PyLong_FromLong(0);
    if (!found)
        return -1;
    Py_XDECREF(c->vbuuid);
    c->vbuuid = found;
    return 0;
}

/* A value as (body, attributes), both owned; false with an error. */
static int read_value(const Changes *c, Py_ssize_t row, uint64_t datatype, PyObject *op, PyObject **body,
                      PyObject **xattrs) {
    int32_t from = c->value_offsets[row], to = c->value_offsets[row + 1];
    if (UNLIKELY(from < 0 || to < from || (size_t)to > c->value_bytes)) {
        PyErr_SetString(PyExc_ValueError, "a value outside of its buffer");
        return 0;
    }
    int is_mutation = number_at(c, OPCODE, row) == MUTATION;
    if (from == to && !is_mutation) {
        *body = Py_NewRef(Py_None);
    } else {
        *body = PyBytes_FromStringAndSize((const char *)c->value + from, to - from);
        if (!*body)
            return 0;
    }
    if (UNLIKELY(from < to && datatype & PACKED)) {
        PyObject *pair = PyObject_CallFunction(c->body_of, "OKO", *body, (unsigned long long)datatype, op);
        Py_CLEAR(*body);
        if (!pair)
            return 0;
        if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
            Py_DECREF(pair);
            PyErr_SetString(PyExc_ValueError, "a body that is no pair");
            return 0;
        }
        *body = Py_NewRef(PyTuple_GetItem(pair, 0));
        *xattrs = Py_NewRef(PyTuple_GetItem(pair, 1));
        Py_DECREF(pair);
        return 1;
    }
    *xattrs = PyDict_New();
    if (!*xattrs)
        Py_CLEAR(*body);
    return *xattrs != NULL;
}

INLINE void put(const Changes *c, PyObject *change, int slot, PyObject *owned) {
    *(PyObject **)((char *)change + c->place[slot]) = owned;
}

/* The change of a row; NULL with an error. */
static PyObject *change_of(Changes *c, Py_ssize_t row, PyObject *run, PyObject *vbid, PyObject *vbuuid) {
    uint64_t opcode = number_at(c, OPCODE, row), datatype = number_at(c, DATATYPE, row);
    uint64_t collection = number_at(c, COLLECTION, row);
    int32_t from = c->key_offsets[row], to = c->key_offsets[row + 1];
    if (UNLIKELY(opcode < MUTATION || opcode >= MUTATION + OPS || from < 0 || to < from || (size_t)to > c->key_bytes)) {
        PyErr_SetString(PyExc_ValueError, "a row that is no change, or a key outside of its buffer");
        return NULL;
    }
    if (UNLIKELY(!c->scope.object || c->scope.number != collection) && next_names(c, collection) < 0)
        return NULL;
    PyObject *flags = kept(&c->flags, number_at(c, FLAGS, row)), *kind = kept(&c->datatype, datatype);
    PyObject *expiry = kept(&c->expiry, number_at(c, EXPIRY, row)), *rev = kept(&c->rev, number_at(c, REV, row));
    PyObject *op = PyTuple_GetItem(c->ops, (Py_ssize_t)(opcode - MUTATION)), *body, *xattrs;
    if (!flags || !kind || !expiry || !rev || !op || !read_value(c, row, datatype, op, &body, &xattrs))
        return NULL;
    PyObject *change = PyType_GenericAlloc(c->type, 0);
    if (!change) {
        Py_DECREF(body);
        Py_DECREF(xattrs);
        return NULL;
    }
    put(c, change, VALUE_SLOT, body);
    put(c, change, XATTRS_SLOT, xattrs);
    put(c, change, OP_SLOT, Py_NewRef(op));
    put(c, change, SCOPE_SLOT, Py_NewRef(c->scope.object));
    put(c, change, COLLECTION_SLOT, Py_NewRef(c->collection));
    put(c, change, VBID_SLOT, Py_NewRef(vbid));
    put(c, change, VBUUID_SLOT, Py_NewRef(vbuuid));
    put(c, change, REV_SLOT, Py_NewRef(rev));
    put(c, change, FLAGS_SLOT, Py_NewRef(flags));
    put(c, change, DATATYPE_SLOT, Py_NewRef(kind));
    put(c, change, EXPIRY_SLOT, Py_NewRef(expiry));
    put(c, change, RUN_SLOT, Py_NewRef(run));
    PyObject *key = PyBytes_FromStringAndSize((const char *)c->key + from, to - from);
    PyObject *seqno = PyLong_FromUnsignedLongLong(number_at(c, SEQNO, row));
    PyObject *cas = PyLong_FromUnsignedLongLong(number_at(c, CAS, row));
    put(c, change, KEY_SLOT, key);
    put(c, change, SEQNO_SLOT, seqno);
    put(c, change, CAS_SLOT, cas);
    /* It refers to texts, numbers and a position only, so it is in no cycle, and the collector need not look at it. */
    PyObject_GC_UnTrack(change);
    if (!key || !seqno || !cas)
        Py_CLEAR(change);
    return change;
}

/* The change of a row in a run that has its rows; NULL with an error. */
static PyObject *change_in(Changes *c, Py_ssize_t row, PyObject *run) {
    uint64_t vbucket = number_at(c, VBUCKET, row);
    if (UNLIKELY(!c->vbuuid || c->vbid.number != vbucket) && next_vbucket(c, vbucket) < 0)
        return NULL;
    return change_of(c, row, run, c->vbid.object, c->vbuuid);
}

INLINE uint32_t owner_of(const Changes *c, Py_ssize_t row) {
    uint32_t owner;
    memcpy(&owner, c->owners + (size_t)row * sizeof(owner), sizeof(owner));
    return owner;
}

/* The changes of all rows that name a run; NULL with an error. */
static PyObject *changes_by_owner(Changes *c, PyObject *runs) {
    Py_ssize_t count = PyTuple_Size(runs), total = 0, at = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *run = PyTuple_GetItem(runs, i);
        if (!PyTuple_Check(run) || PyTuple_Size(run) <= VBUUID_IN_RUN) {
            PyErr_SetString(PyExc_ValueError, "a run that is none");
            return NULL;
        }
    }
    for (Py_ssize_t row = 0; row < c->rows; row++)
        total += owner_of(c, row) < count;
    PyObject *result = PyTuple_New(total);
    for (Py_ssize_t row = 0; result && row < c->rows; row++) {
        uint32_t owner = owner_of(c, row);
        if (owner >= count)
            continue;
        PyObject *run = PyTuple_GetItem(runs, (Py_ssize_t)owner);
        PyObject *vbid = PyTuple_GetItem(run, VBID_IN_RUN), *vbuuid = PyTuple_GetItem(run, VBUUID_IN_RUN);
        PyObject *change = change_of(c, row, run, vbid, vbuuid);
        if (!change || PyTuple_SetItem(result, at++, change) < 0)
            Py_CLEAR(result);
    }
    return result;
}

/* The changes of all runs; NULL with an error. */
static PyObject *changes_of(Changes *c, PyObject *runs) {
    Py_ssize_t count = PyTuple_Size(runs), total = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *run = PyTuple_GetItem(runs, i);
        if (!PyTuple_Check(run) || PyTuple_Size(run) <= STOP_IN_RUN) {
            PyErr_SetString(PyExc_ValueError, "a run that is none");
            return NULL;
        }
        Py_ssize_t first = PyLong_AsSsize_t(PyTuple_GetItem(run, FIRST_IN_RUN));
        Py_ssize_t stop = PyLong_AsSsize_t(PyTuple_GetItem(run, STOP_IN_RUN));
        if (PyErr_Occurred())
            return NULL;
        if (first < 0 || stop < first || stop > c->rows || stop - first > PY_SSIZE_T_MAX - total) {
            PyErr_SetString(PyExc_ValueError, "a run outside of the rows");
            return NULL;
        }
        total += stop - first;
    }
    PyObject *result = PyTuple_New(total);
    Py_ssize_t at = 0;
    for (Py_ssize_t i = 0; result && i < count; i++) {
        PyObject *run = PyTuple_GetItem(runs, i);
        Py_ssize_t stop = PyLong_AsSsize_t(PyTuple_GetItem(run, STOP_IN_RUN));
        for (Py_ssize_t row = PyLong_AsSsize_t(PyTuple_GetItem(run, FIRST_IN_RUN)); row < stop; row++) {
            PyObject *change = change_in(c, row, run);
            if (!change || PyTuple_SetItem(result, at++, change) < 0) {
                Py_CLEAR(result);
                break;
            }
        }
    }
    return result;
}

/* Where the class keeps its slots: it says so itself, in its members. */
static int learn(Changes *c, PyObject *object) {
    c->type = (PyTypeObject *)object;
    memset(c->place, 0, sizeof(c->place));
    const PyMemberDef *member = NULL;
    if (PyType_Check(object) && PyType_HasFeature(c->type, Py_TPFLAGS_HAVE_GC))
        member = PyType_GetSlot(c->type, Py_tp_members);
    for (; member && member->name; member++)
        for (int slot = 0; slot < SLOTS; slot++)
            if (member->type == T_OBJECT_EX && !strcmp(member->name, NAME[slot]))
                c->place[slot] = member->offset;
    for (int slot = 0; slot < SLOTS; slot++)
        if (!c->place[slot]) {
            PyErr_Format(PyExc_ValueError, "a class without the slot %s", NAME[slot]);
            return -1;
        }
    return 0;
}

/* A contiguous buffer of at least `size` bytes; false with an error. */
static int take(PyObject *object, Py_buffer *buffer, size_t size) {
    if (!object || PyObject_GetBuffer(object, buffer, PyBUF_SIMPLE) < 0)
        return 0;
    if ((size_t)buffer->len < size) {
        PyErr_Format(PyExc_ValueError, "a buffer of %zd bytes instead of %zd", buffer->len, (Py_ssize_t)size);
        PyBuffer_Release(buffer);
        return 0;
    }
    return 1;
}

const char kernel_changes_doc[] =
    "changes(type, rows, columns, key_offsets, key, value_offsets, value, runs, ops, names, vbuuids, body_of,\n"
    "        owners) -> tuple\n\n"
    "The changes in those rows that lie in runs, in their order.\n\n"
    "`owners` is None, or has the number of each row's run as uint32 in bytes, a larger one for a row that does\n"
    "not count; then the runs need not say which rows they have, and `vbuuids` is not read.\n"
    "`columns` are opcode, collection, vbucket, seqno, rev, cas, flags, datatype and expiry; `ops` the names of\n"
    "mutation, deletion and expiration; `names` and `vbuuids` dicts by collection and vbucket;\n"
    "`body_of(value, datatype, op)` reads values that are compressed or have attributes.";

PyObject *kernel_changes(PyObject *Py_UNUSED(module), PyObject *arguments) {
    enum { KEY_OFFSETS = COLUMNS, KEY, VALUE_OFFSETS, VALUE, BUFFERS };
    Changes c = {0};
    Py_buffer buffers[BUFFERS], owners;
    PyObject *type, *columns, *objects[BUFFERS], *runs, *result = NULL;
    int held = 0;
    if (!PyArg_ParseTuple(arguments, "OnO!OOOOO!O!O!O!Oz*", &type, &c.rows, &PyTuple_Type, &columns,
                          &objects[KEY_OFFSETS], &objects[KEY], &objects[VALUE_OFFSETS], &objects[VALUE], &PyTuple_Type,
                          &runs, &PyTuple_Type, &c.ops, &PyDict_Type, &c.names, &PyDict_Type, &c.vbuuids, &c.body_of,
                          &owners))
        return NULL;
    c.owners = owners.buf;
    if (c.rows < 0 || c.rows >= INT32_MAX || PyTuple_Size(columns) != COLUMNS || PyTuple_Size(c.ops) != OPS ||
        (c.owners && owners.len / (Py_ssize_t)sizeof(uint32_t) < c.rows)) {
        PyErr_SetString(PyExc_ValueError, "a wrong number of rows, columns or ops");
        goto release;
    }
    if (learn(&c, type) < 0)
        goto release;
    for (; held < BUFFERS; held++) {
        size_t size = 0;
        if (held < COLUMNS) {
            objects[held] = PyTuple_GetItem(columns, held);
            size = (size_t)c.rows * WIDTH[held];
        } else if (held == KEY_OFFSETS || held == VALUE_OFFSETS) {
            size = ((size_t)c.rows + 1) * sizeof(int32_t);
        }
        if (!take(objects[held], &buffers[held], size))
            goto release;
        if (size && held >= COLUMNS && (uintptr_t)buffers[held].buf % sizeof(int32_t)) {
            PyErr_SetString(PyExc_ValueError, "offsets that are not aligned");
            PyBuffer_Release(&buffers[held]);
            goto release;
        }
    }
    for (int column = 0; column < COLUMNS; column++)
        c.column[column] = buffers[column].buf;
    c.key_offsets = buffers[KEY_OFFSETS].buf;
    c.key = buffers[KEY].buf;
    c.key_bytes = (size_t)buffers[KEY].len;
    c.value_offsets = buffers[VALUE_OFFSETS].buf;
    c.value = buffers[VALUE].buf;
    c.value_bytes = (size_t)buffers[VALUE].len;
    result = c.owners ? changes_by_owner(&c, runs) : changes_of(&c, runs);
    Kept *const all[] = {&c.flags, &c.datatype, &c.expiry, &c.rev, &c.vbid, &c.scope};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        Py_XDECREF(all[i]->object);
    Py_XDECREF(c.collection);
    Py_XDECREF(c.vbuuid);
release:
    while (held > 0)
        PyBuffer_Release(&buffers[--held]);
    PyBuffer_Release(&owners);
    return result;
}
