/* For the programs of this folder: what must hold, and who ends where it does not. */
#ifndef CHECK_H
#define CHECK_H

#include <duramen_alloc.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(holds)                                                                                     \
    do {                                                                                                 \
        if (!(holds)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s (%d: %s)\n", __FILE__, __LINE__, #holds, ssd_error(), ssd_error_message()); \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)

#endif
