/* Ends at once; the library that it is linked to does the work. */
void holder(void);

int main(void)
{
	holder();
	return 0;
}
