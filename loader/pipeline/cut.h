/*
 * How much of a verified JPEG a sample needs: its crop is drawn before it is read, and what lies
 * below the crop is not read at all.
 *
 * From the file's begin down to the crop's bottom, in one read: leaving out what lies above, too,
 * would be a second request for each sample, and save as much again at most.
 */
#ifndef FM_PIPELINE_CUT_H
#define FM_PIPELINE_CUT_H

#include "transform/plan.h"

/*
 * The bytes to read of a sample with `rows`, up to and with a restart marker; range_bytes where all
 * are needed. Pure.
 */
uint64_t fm_cut_bytes(const fm_plan *plan, const fm_sample *sample, const fm_draw_key *key);

/*
 * Makes the restart marker at the end of so many bytes an EOI, which ends the part as a file ends.
 * false: there is none, or no JPEG: the rows are not the image's.
 */
bool fm_cut_end(uint8_t *bytes, uint64_t n_bytes);

#endif
