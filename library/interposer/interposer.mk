# Our product: libvcuda.so.1 (state), libcuda.so.1, libnvidia-ml.so.1 into build/interposer/. Included by ../Makefile.
#
# The real driver is needed by the names libcuda-real.so.1 and libnvidia-ml-real.so.1, which exist only where the mirror made them: for linking an empty
# library of that name stands in. Symbols of ours bind to ours (-Bsymbolic), whatever else a process has loaded.

INTERPOSER := interposer
INTERPOSERS := $(addprefix $(BUILD)/interposer/,libvcuda.so.1 libcuda.so.1 libnvidia-ml.so.1)
.PHONY: interposer
interposer: $(INTERPOSERS)

INTERPOSER_FLAGS = -shared -Wl,-soname,$(@F) -Wl,-z,now -Wl,-z,nodelete -Wl,-z,noexecstack -Wl,-Bsymbolic \
	-Wl,--enable-new-dtags -Wl,-rpath,'$$ORIGIN' $(NO_UNDEFINED)

$(BUILD)/objects/$(INTERPOSER)/%.o: FLAGS += -I.

$(BUILD)/interposer/libvcuda.so.1: $(call objects,$(wildcard $(INTERPOSER)/state/*.c)) $(INTERPOSER)/state/exports.map
	@mkdir -p $(@D)
	@echo "  link $@"
	@$(CC) $(FLAGS) $(INTERPOSER_FLAGS) -Wl,--version-script,$(INTERPOSER)/state/exports.map -o $@.new $(filter %.o,$^) && mv $@.new $@

$(BUILD)/interposer/libcuda.so.1: $(call objects,$(wildcard $(INTERPOSER)/cuda/*.c $(INTERPOSER)/cuda/*/*.c)) $(BUILD)/interposer/cuda.map \
		$(BUILD)/interposer/stubs/libcuda-real.so.1 $(BUILD)/interposer/libvcuda.so.1
	@echo "  link $@"
	@$(CC) $(FLAGS) $(INTERPOSER_FLAGS) -Wl,--version-script,$(BUILD)/interposer/cuda.map -o $@.new $(filter %.o,$^) \
		-Wl,--no-as-needed $(filter %.so.1,$^) -Wl,--as-needed -ldl && mv $@.new $@

$(BUILD)/interposer/libnvidia-ml.so.1: $(call objects,$(wildcard $(INTERPOSER)/nvml/*.c)) $(BUILD)/interposer/nvml.map \
		$(BUILD)/interposer/stubs/libnvidia-ml-real.so.1 $(BUILD)/interposer/libvcuda.so.1
	@echo "  link $@"
	@$(CC) $(FLAGS) $(INTERPOSER_FLAGS) -Wl,--version-script,$(BUILD)/interposer/nvml.map -o $@.new $(filter %.o,$^) \
		-Wl,--no-as-needed $(filter %.so.1,$^) -Wl,--as-needed -ldl && mv $@.new $@

$(INTERPOSERS): $(INTERPOSER)/interposer.mk

$(BUILD)/interposer/%.map: $(INTERPOSER)/%/exports.map.in $(wildcard $(INTERPOSER)/cuda/*.def $(INTERPOSER)/nvml/*.def)
	@mkdir -p $(@D)
	@$(CC) -E -P -x c -I$(<D) -o $@.new $< && mv $@.new $@

$(BUILD)/interposer/stubs/%.so.1:
	@mkdir -p $(@D)
	@$(CC) $(FLAGS) -shared -nostdlib -Wl,-soname,$(@F) -x c -o $@.new /dev/null && mv $@.new $@

# Once more with the thread sanitizer, into build/threads; `make sanitize` has them with the others. It does not follow fences, which gcc warns of:
# what they order is atomic all the same.
.PHONY: sanitize-threads
sanitize-threads:
	$(MAKE) BUILD=$(BUILD)/threads NO_UNDEFINED= CFLAGS="-O1 -g -fno-omit-frame-pointer" \
		SANITIZE="-fsanitize=thread $(if $(findstring clang,$(CC)),,-Wno-tsan)" interposer

# What reads files that others wrote, for libFuzzer: CC=clang.
.PHONY: fuzz
fuzz: $(BUILD)/fuzz/limits
$(BUILD)/fuzz/limits: fuzz/limits.c $(wildcard $(INTERPOSER)/state/*.[ch])
	@mkdir -p $(@D)
	@$(CC) $(FLAGS) -I. -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -o $@ $(filter %.c,$^)
