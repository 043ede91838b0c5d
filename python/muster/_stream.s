# work(table): takes pieces off a table until there are none left, and copies each.
# x86-64, System V; may run in any number of threads at once.
#
# The table is 64 bits each of: the next piece, how many there are, and for each
# its target, its source and its bytes, which do not overlap.
#
# _stream.py has this as bytes; python/tests/test_stream.py assembles it and compares.

	.text
work:	push	%rbx
	mov	%rdi, %rbx
1:	mov	$1, %eax
	lock xadd %rax, (%rbx)
	cmp	8(%rbx), %rax
	jae	2f
	lea	(%rax,%rax,2), %rax
	lea	16(%rbx,%rax,8), %rax
	mov	(%rax), %rdi
	mov	8(%rax), %rsi
	mov	16(%rax), %rdx
	call	copy
	jmp	1b
2:	xor	%eax, %eax
	pop	%rbx
	ret

# copy(target, source, bytes)
copy:	mov	%rdi, %rcx		# byte by byte up to the next line of the target
	neg	%rcx
	and	$63, %ecx
	cmp	%rdx, %rcx
	cmova	%rdx, %rcx
	sub	%rcx, %rdx
	rep movsb

	mov	%rdx, %rcx		# blocks of four pages
	and	$0x3fff, %edx
	shr	$14, %rcx
	jz	3f
1:	mov	$64, %eax		# a line of each of the four at a time, so that memory
2:	movups	0x0000(%rsi), %xmm0	# has four rows open: a third faster than one by one
	movups	0x0010(%rsi), %xmm1
	movups	0x0020(%rsi), %xmm2
	movups	0x0030(%rsi), %xmm3
	movups	0x1000(%rsi), %xmm4
	movups	0x1010(%rsi), %xmm5
	movups	0x1020(%rsi), %xmm6
	movups	0x1030(%rsi), %xmm7
	movups	0x2000(%rsi), %xmm8
	movups	0x2010(%rsi), %xmm9
	movups	0x2020(%rsi), %xmm10
	movups	0x2030(%rsi), %xmm11
	movups	0x3000(%rsi), %xmm12
	movups	0x3010(%rsi), %xmm13
	movups	0x3020(%rsi), %xmm14
	movups	0x3030(%rsi), %xmm15
	movntdq	%xmm0, 0x0000(%rdi)	# stores that do not fetch what they overwrite
	movntdq	%xmm1, 0x0010(%rdi)
	movntdq	%xmm2, 0x0020(%rdi)
	movntdq	%xmm3, 0x0030(%rdi)
	movntdq	%xmm4, 0x1000(%rdi)
	movntdq	%xmm5, 0x1010(%rdi)
	movntdq	%xmm6, 0x1020(%rdi)
	movntdq	%xmm7, 0x1030(%rdi)
	movntdq	%xmm8, 0x2000(%rdi)
	movntdq	%xmm9, 0x2010(%rdi)
	movntdq	%xmm10, 0x2020(%rdi)
	movntdq	%xmm11, 0x2030(%rdi)
	movntdq	%xmm12, 0x3000(%rdi)
	movntdq	%xmm13, 0x3010(%rdi)
	movntdq	%xmm14, 0x3020(%rdi)
	movntdq	%xmm15, 0x3030(%rdi)
	add	$64, %rsi
	add	$64, %rdi
	dec	%eax
	jnz	2b
	add	$0x3000, %rsi
	add	$0x3000, %rdi
	dec	%rcx
	jnz	1b
	sfence				# others see all of it before they see what comes after

3:	mov	%edx, %ecx		# the rest
	rep movsb
	ret
