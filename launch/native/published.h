/* What ranks of a job have published, for their peers on this host to read: see published.c. */
#include <stddef.h>
#include <stdint.h>

enum { STRING = 3, BYTES = 27 };     /* PMIx 5 types */
enum { KEY = 40 };                   /* an entry: key, u16 type, u16 size, bytes */

int board_rows_new(uint32_t ranks, const char *parts);
void board_rows_rank(uint32_t rank);
void board_publish(const char *key, const void *bytes, size_t size);
const char *board_published(uint32_t rank, const char *key);
void board_publish_locality(uint32_t rank, const char *key, const char *text);
const char *board_locality(uint32_t rank);
