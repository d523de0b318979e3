/*
 * The scenarios that run while calls fail: the whole native path, from opening to closing, for each
 * kind of source, reader and delivery.
 */
#ifndef FM_TEST_FAULT_SCENARIOS_H
#define FM_TEST_FAULT_SCENARIOS_H

#include "fault_kinds.h"
#include "feedmill/feedmill.h"

#define FAULT_MOST_ERRORS 8

typedef struct fault_error {
    const char *step; /* what failed: "open" */
    fm_error error;
} fault_error;

typedef struct fault_errors {
    int n;
    fault_error list[FAULT_MOST_ERRORS];
} fault_errors;

typedef struct fault_scenario fault_scenario;
struct fault_scenario {
    const char *name;
    bool needs_uring;
    /*
     * Opens, runs epochs, stops one early, closes. The board is armed from the first call to the
     * last, but for the epoch that must work again behind those in which a call may have failed.
     * Adds the errors that it got to *errors; anything else that is wrong ends the process.
     */
    void (*run)(const fault_scenario *self, fault_board *board, fault_errors *errors);
    /* For run(). */
    fm_reader_kind reader;
    int source, delivery;
    bool cache, views;
};

extern const fault_scenario fault_scenarios[];
extern const size_t fault_n_scenarios;

/* Makes the files and arrays, in a temporary folder; exits with 77 where that can't be done. */
void fault_scenarios_open(void);
void fault_scenarios_close(void);

/* From now on batches are compared with those that came before this call. */
void fault_scenarios_compare(bool compare);

/* Whether an error's text names what was at fault: the path of the sample that it is about, or of
 * the folder. */
bool fault_names_path(const fault_error *error);

/* In the process under test: reports a defect, and ends the process. */
void fault_complain(fault_board *board, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));

#endif
