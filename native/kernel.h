/* What the files of the native kernel share. */

#ifndef DCPSTREAM_KERNEL_H
#define DCPSTREAM_KERNEL_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADER_BYTES = 24,
    MUTATION_EXTRAS = 31,

    OPAQUE_AT = 12, /* in a header */

    REQUEST = 0x80,
    FLEX_REQUEST = 0x08,
    MUTATION = 0x57,
};

#if defined(__GNUC__) || defined(__clang__)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define INLINE static inline __attribute__((always_inline))
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define UNLIKELY(condition) (condition)
#define LIKELY(condition) (condition)
#define INLINE static inline
#define PREFETCH(address) ((void)(address))
#endif

INLINE uint16_t u16_at(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }

INLINE uint32_t u32_at(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

INLINE uint64_t u64_at(const uint8_t *p) { return (uint64_t)u32_at(p) << 32 | u32_at(p + 4); }

INLINE void put_u16(uint8_t *p, uint16_t number) {
    p[0] = (uint8_t)(number >> 8);
    p[1] = (uint8_t)number;
}

INLINE void put_u32(uint8_t *p, uint32_t number) {
    put_u16(p, (uint16_t)(number >> 16));
    put_u16(p + 2, (uint16_t)number);
}

INLINE void put_u64(uint8_t *p, uint64_t number) {
    put_u32(p, (uint32_t)(number >> 32));
    put_u32(p + 4, (uint32_t)number);
}

/* The functions that Python sees; the file of each describes it. */
PyObject *kernel_walk(PyObject *module, PyObject *arguments);
PyObject *kernel_settle(PyObject *module, PyObject *arguments);
PyObject *kernel_reached(PyObject *module, PyObject *arguments);
PyObject *kernel_scan(PyObject *module, PyObject *arguments);
PyObject *kernel_decode(PyObject *module, PyObject *arguments);
PyObject *kernel_table(PyObject *module, PyObject *arguments);
PyObject *kernel_runs(PyObject *module, PyObject *arguments);
PyObject *kernel_changes(PyObject *module, PyObject *arguments);
PyObject *kernel_answer(PyObject *module, PyObject *arguments);
PyObject *kernel_is_json(PyObject *module, PyObject *value);
PyObject *kernel_select_rows(PyObject *module, PyObject *arguments);
PyObject *kernel_cut(PyObject *module, PyObject *arguments);
PyObject *kernel_mark(PyObject *module, PyObject *arguments);
PyObject *kernel_writes(PyObject *module, PyObject *arguments);
PyObject *kernel_reads(PyObject *module, PyObject *arguments);
PyObject *kernel_answers(PyObject *module, PyObject *arguments);
PyObject *kernel_results(PyObject *module, PyObject *arguments);
extern const char kernel_scan_doc[], kernel_decode_doc[], kernel_table_doc[], kernel_runs_doc[], kernel_changes_doc[],
    kernel_answer_doc[], kernel_is_json_doc[], kernel_select_rows_doc[], kernel_cut_doc[], kernel_mark_doc[],
    kernel_writes_doc[], kernel_reads_doc[], kernel_answers_doc[], kernel_results_doc[],
    kernel_walk_doc[], kernel_settle_doc[], kernel_reached_doc[];

/* Whether a text is JSON (json.c). */
enum { NOT_JSON, IS_JSON, TOO_DEEP };
int json_text(const uint8_t *text, size_t length);

/* The length of a raw snappy block's content, -1 if it is not valid; inflate it, 0 if it is not sound (snappy.c). */
int64_t snappy_length(const uint8_t *block, size_t size);
int snappy_inflate(const uint8_t *block, size_t size, uint8_t *out, size_t length);

/* What the functions on requests keep with the module (requests.c). */
int requests_begin(PyObject *module);
void requests_end(PyObject *module);
size_t requests_state_bytes(void);

#endif
