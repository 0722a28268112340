#ifndef DESCRIPTORS_H
#define DESCRIPTORS_H
#include <stdint.h>

int descriptors_new(uint32_t ranks, int lie);              /* before the fork; -1: no memory */
void descriptors_rank(uint32_t rank);                      /* in the rank, after the fork, before MPI_Init */
void descriptor_opened(const char *path, uint32_t segment);/* a peer's segment is about to be attached */
uint32_t descriptors_shared(void);                         /* how many were given from the table in this job */
#endif
