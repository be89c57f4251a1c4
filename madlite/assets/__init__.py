"""What runs need from elsewhere: where it is kept, whether it is here, and how it is fetched."""
