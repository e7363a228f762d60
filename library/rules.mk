# How C is compiled here, for library/Makefile and emulator/Makefile: the compiler, its warnings, and one rule for objects.
#
# In: INCLUDES, the include paths. CC may be gcc or clang; CFLAGS, SANITIZE and BUILD may be given.
# Everything is made under a temporary name and moved into place: several builds may run at once.

RULES := $(lastword $(MAKEFILE_LIST))
ifeq ($(origin CC),default)
CC := gcc
endif
BUILD := build
CFLAGS ?= -O2 -g
# Tables leave members out on purpose, which C defines as zero.
WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-missing-field-initializers
FLAGS := -std=c11 -D_GNU_SOURCE -fPIC -pthread -fvisibility=hidden $(INCLUDES) $(WARNINGS) $(CFLAGS) $(SANITIZE)
NO_UNDEFINED ?= -Wl,-z,defs
SANITIZED := NO_UNDEFINED= CFLAGS="-O1 -g -fno-omit-frame-pointer" SANITIZE="-fsanitize=address,undefined -fno-sanitize-recover=undefined"

objects = $(patsubst %.c,$(BUILD)/objects/%.o,$(1))

.DEFAULT_GOAL := all
.PHONY: all clean sanitize

$(BUILD)/objects/%.o: %.c Makefile $(RULES)
	@mkdir -p $(@D)
	@echo "  cc   $<"
	@$(CC) $(FLAGS) -MMD -MP -MF $(@:.o=.d) -MT $@ -c -o $@.$$$$ $< && mv $@.$$$$ $@

sanitize: WHAT := all
sanitize:
	$(MAKE) BUILD=$(BUILD)/sanitize $(SANITIZED) $(WHAT)

clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD)/objects -name '*.d' 2>/dev/null)
